"""Masks and scores of the package attn-gym, where it is: what PyTorch's users copy from."""

import flex_cases
from flex_suite_test import count_right
from support import Skip, harness
from torch_support import Setting

N = flex_cases.QUERIES  # 40 tokens: 5 rows of 8


def gym():
    setting = Setting()
    try:
        import attn_gym.masks
        import attn_gym.mods
    except ImportError as error:
        raise Skip(f"no attn-gym ({error})") from None
    return setting, attn_gym.masks, attn_gym.mods


def masks_of(torch, masks):
    from attn_gym.masks import document_mask, vsa
    from torch.nn.attention.flex_attention import noop_mask
    torch.manual_seed(2)
    causal, offsets = masks.causal_mask, torch.tensor([0, 13, 27, N], dtype=torch.int32)
    window = masks.generate_sliding_window(9)
    ancestors = masks.build_tree_ancestor_matrix([-1, *(at // 2 for at in range(N - 1))], device="cpu")
    chosen = torch.stack([torch.randperm(5)[:2] for _ in range(2 * 4 * 5)]).view(2, 4, 5, 2)
    images = torch.tensor([[0, 12], [5, 25], [20, 40], [0, 40], [3, 9]])
    is_global = torch.zeros(N, dtype=torch.bool).index_fill(0, torch.tensor([0, 17]), True)
    return {
        "causal": causal,
        "sliding_window": window,
        "prefix_lm": masks.generate_prefix_lm_mask(11),
        "dilated": masks.generate_dilated_sliding_window(12, 3),
        "batchify": masks.batchify_mask_mod(causal, 8),
        "batchify_noop": masks.batchify_mask_mod(noop_mask, 8),
        "batchify_window": masks.batchify_mask_mod(window, 16),
        "document": document_mask.generate_doc_mask_mod(causal, offsets),
        "document_noop": document_mask.generate_doc_mask_mod(noop_mask, offsets),
        "document_window": document_mask.generate_doc_mask_mod(window, offsets),
        "document_prefix": document_mask.generate_doc_mask_mod(masks.generate_prefix_lm_mask(4), offsets),
        "packed_causal_document": document_mask.generate_packed_causal_doc_mask_mod(offsets),
        "block_diffusion": masks.generate_block_diffusion_mask(20, 5),
        "vision_cross_attention": masks.generate_vision_cross_attention_mask_mod(images, 8),
        "global_sliding_window": masks.generate_global_sliding_window(5, is_global),
        "jetspec_tree": masks.generate_jetspec_tree_causal_mask_mod(7, ancestors),
        "jetspec_training": masks.generate_jetspec_training_mask_mod(8, 8),
        "natten": masks.generate_natten(8, 5, 3, 3),
        "tiled_natten": masks.generate_tiled_natten(8, 4, 3, 3, 4, 2),
        "morton_natten": masks.generate_morton_natten(8, 8, 3, 3),
        "sta_2d": masks.generate_sta_mask_mod_2d((4, 8), (2, 4), (2, 2), 4),
        "sta_2d_no_text": masks.generate_sta_mask_mod_2d((4, 8), (2, 4), (2, 2)),
        "sta_3d": masks.generate_sta_mask_mod_3d((2, 4, 4), (2, 2, 2), (1, 2, 2), 8),
        "sta_3d_no_text": masks.generate_sta_mask_mod_3d((2, 4, 4), (2, 2, 2), (1, 2, 2)),
        "spatial_head": masks.generate_spatial_head_mask_mod(8, 4, 8, 2, False, 4),
        "spatial_head_sink": masks.generate_spatial_head_mask_mod(8, 4, 8, 2, True, 4),
        "temporal_head": masks.generate_temporal_head_mask_mod(8, 4, 8, 2),
        "shared_prefix": masks.generate_shared_prefix_mask_mod(offsets, torch.tensor([0, 0, 1])),
        "vsa": masks.generate_vsa_mask_mod(chosen, 8),
        "vsa_sizes": masks.generate_vsa_mask_mod(chosen, 8, torch.tensor([8, 8, 5, 8, 3])),
        "vsa_padding": vsa.generate_vsa_padding_mask_mod(torch.tensor([8, 8, 5, 8, 3]), 8),
    }


def scores_of(torch, mods):
    F = torch.nn.functional
    torch.manual_seed(2)
    edges = torch.rand(2, N, N) < 0.1
    distances = mods.shortest_path_distances(edges, 4)
    types, lengths = mods.shortest_path_edge_types(edges, torch.randint(0, 3, (2, N, N)), 3)
    return {
        "alibi": mods.generate_alibi_bias(4),
        "softcap": mods.generate_tanh_softcap(5),
        "softcap_approximate": mods.generate_tanh_softcap(5, approx=True),
        "softcap_large": mods.generate_tanh_softcap(30),
        "sandwich": mods.generate_sandwich_bias(4, N, 16),
        "graphormer_spatial": mods.generate_graphormer_spatial_bias(torch.randn(4, 6), distances),
        "graphormer_edges": mods.generate_graphormer_edge_bias(torch.randn(4, 3, 3), types, lengths),
        "latent_rope": mods.generate_mla_rope_score_mod(torch.randn(2, 4, N, 8), torch.randn(2, 1, N, 8), 4, 0.3),
        "activation_gelu": mods.generate_activation_score_mod(),
        "activation_relu": mods.generate_activation_score_mod(F.relu),
        "activation_silu": mods.generate_activation_score_mod(F.silu),
        "activation_sigmoid": mods.generate_activation_score_mod(torch.sigmoid),
    }


def test_masks_and_scores_of_attn_gym():
    setting, masks, mods = gym()
    torch = setting.torch
    with torch.device(setting.device):
        functions = {name: (mask, None) for name, mask in masks_of(torch, masks).items()}
        functions.update({name: (None, score) for name, score in scores_of(torch, mods).items()})
    count_right(setting, "attn-gym", functions)


if __name__ == "__main__":
    harness.main(globals())
