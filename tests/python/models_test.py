"""The models of transformers, tiny and with random weights, against their own eager attention in fp32: every one is right with this
attention, or refused before anything is computed. Kernels of GPUs take no fp32: there it is right under autocast, or in bf16."""

import copy

from support import find, harness, refused
from torch_support import Setting

TOKENS, VOCABULARY = 12, 48
DECODER = dict(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
               max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=None)
HEADS_ALIKE = {**DECODER, "num_key_value_heads": 4}
HEAD_DIM = {**DECODER, "head_dim": 16}
EXPERTS = dict(num_local_experts=4, num_experts_per_tok=2)
WINDOW = dict(sliding_window=6, layer_types=["sliding_attention", "full_attention"])
ENCODER = dict(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64,
               pad_token_id=0)
BART = dict(vocab_size=VOCABULARY, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
            encoder_ffn_dim=96, decoder_ffn_dim=96, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=None,
            decoder_start_token_id=1, forced_eos_token_id=None)
T5 = dict(vocab_size=VOCABULARY, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, pad_token_id=0, eos_token_id=None,
          decoder_start_token_id=1)
IMAGE = dict(image_size=24, patch_size=8, num_channels=3, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
LATENT = dict(n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=2, moe_intermediate_size=32, first_k_dense_replace=1,
              q_lora_rank=24, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16, n_shared_experts=1)

# Each has the class of the model, that of its configuration, and what the latter is given.
DECODERS = (
    ("LlamaForCausalLM", "LlamaConfig", DECODER),
    ("MistralForCausalLM", "MistralConfig", {**DECODER, "sliding_window": 6}),
    ("Qwen2ForCausalLM", "Qwen2Config", DECODER),
    ("Qwen3ForCausalLM", "Qwen3Config", HEAD_DIM),
    ("GemmaForCausalLM", "GemmaConfig", HEAD_DIM),
    ("Gemma2ForCausalLM", "Gemma2Config", {**HEAD_DIM, **WINDOW, "attn_logit_softcapping": 2.0}),
    ("Gemma3ForCausalLM", "Gemma3TextConfig", {**HEAD_DIM, **WINDOW}),
    ("Phi3ForCausalLM", "Phi3Config", DECODER),
    ("CohereForCausalLM", "CohereConfig", DECODER),
    ("Cohere2ForCausalLM", "Cohere2Config", {**DECODER, **WINDOW}),
    ("Olmo2ForCausalLM", "Olmo2Config", DECODER),
    ("StableLmForCausalLM", "StableLmConfig", DECODER),
    ("Starcoder2ForCausalLM", "Starcoder2Config", DECODER),
    ("GraniteForCausalLM", "GraniteConfig", DECODER),
    ("SmolLM3ForCausalLM", "SmolLM3Config", DECODER),
    ("GlmForCausalLM", "GlmConfig", HEAD_DIM),
    ("HeliumForCausalLM", "HeliumConfig", HEAD_DIM),
    ("GPT2LMHeadModel", "GPT2Config", HEADS_ALIKE),
    ("GPTNeoXForCausalLM", "GPTNeoXConfig", DECODER),
    ("PhiForCausalLM", "PhiConfig", DECODER),
    ("OPTForCausalLM", "OPTConfig", {**DECODER, "ffn_dim": 96, "word_embed_proj_dim": 64}),
    ("BioGptForCausalLM", "BioGptConfig", DECODER),
    ("MixtralForCausalLM", "MixtralConfig", {**DECODER, **EXPERTS}),
    ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**HEAD_DIM, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}),
    ("GptOssForCausalLM", "GptOssConfig", {**HEAD_DIM, **EXPERTS, **WINDOW}),
    ("DeepseekV3ForCausalLM", "DeepseekV3Config", {**HEADS_ALIKE, **LATENT}),
)
OF_TWO_PARTS = (
    ("T5ForConditionalGeneration", "T5Config", T5),
    ("BartForConditionalGeneration", "BartConfig", BART),
    ("MarianMTModel", "MarianConfig", {**BART, "decoder_vocab_size": VOCABULARY}),
    ("PegasusForConditionalGeneration", "PegasusConfig", BART),
    ("MBartForConditionalGeneration", "MBartConfig", BART),
)
ENCODERS = (
    ("BertForMaskedLM", "BertConfig", ENCODER),
    ("RobertaForMaskedLM", "RobertaConfig", ENCODER),
    ("DistilBertForMaskedLM", "DistilBertConfig", {**ENCODER, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 96}),
    ("ElectraForMaskedLM", "ElectraConfig", {**ENCODER, "embedding_size": 64}),
    ("ModernBertForMaskedLM", "ModernBertConfig", {**ENCODER, "local_attention": 8, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}),
    ("EsmForMaskedLM", "EsmConfig", {**ENCODER, "mask_token_id": 3, "position_embedding_type": "rotary"}),
)
OF_IMAGES = (
    ("ViTModel", "ViTConfig", IMAGE),
    ("DeiTModel", "DeiTConfig", IMAGE),
    ("Dinov2Model", "Dinov2Config", IMAGE),
    ("SiglipVisionModel", "SiglipVisionConfig", IMAGE),
)
SPEECH = dict(vocab_size=VOCABULARY, num_mel_bins=8, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
              encoder_ffn_dim=96, decoder_ffn_dim=96, max_source_positions=16, max_target_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=None,
              decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None)
CLIP = dict(text_config={**ENCODER, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": TOKENS}, vision_config=IMAGE, projection_dim=32)
# Their code never asks for the attention that is registered, or their flags say that they take none.
WITH_THEIR_OWN = (
    ("BloomForCausalLM", "BloomConfig", dict(vocab_size=VOCABULARY, hidden_size=64, n_layer=2, n_head=4)),
    ("MptForCausalLM", "MptConfig", dict(vocab_size=VOCABULARY, d_model=64, n_layers=2, n_heads=4, max_seq_len=64)),
    ("FalconForCausalLM", "FalconConfig", dict(vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2, num_attention_heads=4)),
    ("GPTNeoForCausalLM", "GPTNeoConfig", dict(vocab_size=VOCABULARY, hidden_size=64, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]])),
    ("XGLMForCausalLM", "XGLMConfig", dict(vocab_size=VOCABULARY, d_model=64, ffn_dim=96, num_layers=2, attention_heads=4)),
    ("MegatronBertForMaskedLM", "MegatronBertConfig", ENCODER),
    ("RoFormerForMaskedLM", "RoFormerConfig", ENCODER),
    ("GitForCausalLM", "GitConfig", {**ENCODER, "vision_config": IMAGE}),
)
NAME = "jit_attention"


class Models(Setting):
    """`calls`: how often the registered attention was called."""

    def __init__(self):
        super().__init__()
        self.of_values, self.of_gradients = (2e-2, 5e-2) if self.gpu else (3e-5, 2e-4)  # limits, as shares of the largest element
        self.torch.set_num_threads(1)  # of models as small as these, threads wait for each other most of the time
        self.transformers = transformers = find("transformers")
        transformers.logging.set_verbosity_error()
        self.ours.register_with_transformers(NAME)
        import flashjit.models
        attention, self.calls = flashjit.models.attention, 0

        def counted(*arguments, **named):
            self.calls += 1
            return attention(*arguments, **named)

        flashjit.models.attention = counted

    def pair(self, name, config, given):
        """The same weights with both."""
        models = [self.make(name, config, given, implementation) for implementation in ("eager", NAME)]
        models[1].load_state_dict(models[0].state_dict())
        return models

    def make(self, name, config, given, implementation):
        self.torch.manual_seed(5)
        config = getattr(self.transformers, config)(**given)
        return getattr(self.transformers, name)._from_config(config, attn_implementation=implementation).eval().to(self.device)

    def tokens(self, *shape):
        return self.torch.randint(4, VOCABULARY, shape, device=self.device)

    def padding(self, side):
        mask = self.torch.ones(2, TOKENS, dtype=self.torch.long, device=self.device)
        mask[0, slice(0, 5) if side == "left" else slice(TOKENS - 5, TOKENS)] = 0
        return mask

    def near(self, got, wanted, what, limit):
        got, wanted = got.double(), wanted.double()
        error = (got - wanted).abs().max().item() / max(1e-3, wanted.abs().max().item())
        assert error < limit, f"{what}: {error}"

    def as_near(self, found, exact, what):
        """Of what eager and this attention give under autocast, the error of the latter may be twice that of the former. Where
        it should be nothing, as the gradient of a bias of keys, both are roundings alone, whose sizes differ by chance."""
        errors = [self.torch.linalg.vector_norm(x.double() - exact.double()).item() for x in found]
        size = self.torch.linalg.vector_norm(exact.double()).item()
        most = (2 if size > 1e-6 else 5) * errors[0] + 4e-3 * size + 1e-5
        assert errors[1] < most, f"{what}: {errors} of {size}"

    def compare_exact(self, models, inputs, seen, what):
        """A forward, and a step of training with it, in fp32, which it gives."""
        eager, *ours = [step(self.torch, model, inputs, seen) for model in models[:1 if self.gpu else 2]]
        for found in ours:
            for name, wanted in eager.items():
                self.near(found[name], wanted, f"{what}: {name}", self.of_values if name in ("values", "loss") else self.of_gradients)
        return eager

    def compare(self, models, inputs, seen, what):
        """The same, and then under autocast."""
        exact = self.compare_exact(models, inputs, seen, what)
        with self.torch.autocast(self.device, self.torch.bfloat16):
            narrow = [step(self.torch, model, inputs, seen) for model in models]
        for name, wanted in exact.items():
            self.as_near([found[name] for found in narrow], wanted, f"{what}, autocast: {name}")

    def spoken(self, model, inputs, more):
        """What the model says, and the logits of each token."""
        model.generation_config.update(disable_compile=True)
        found = model.generate(**inputs, max_new_tokens=5, min_new_tokens=5, do_sample=False, output_logits=True, return_dict_in_generate=True, **more)
        return found.sequences[:, -5:], found.logits

    def generate(self, models, inputs, what):
        compare = self.compare_spoken_in_16_bits if self.gpu else self.compare_spoken
        for more in ({}, {"cache_implementation": "static"}):
            compare(self.spoken(models[0], inputs, more), models, inputs, more, f"{what} {more}")

    def compare_spoken(self, exact, models, inputs, more, what):
        said, logits = self.spoken(models[1], inputs, more)
        assert self.torch.equal(exact[0], said), what
        for i, (wanted, got) in enumerate(zip(exact[1], logits)):
            self.near(got, wanted, f"{what}: token {i}", self.of_values)

    def spoken_in_16_bits(self, model, inputs, more):
        """By autocast, which caches of a fixed size do not bear, with eager attention neither: there the model has 16 bits."""
        if not more:
            with self.torch.autocast(self.device, self.torch.bfloat16):
                return self.spoken(model, inputs, more)
        narrow = {name: x.to(self.torch.bfloat16) if x.is_floating_point() else x for name, x in inputs.items()}
        return self.spoken(copy.deepcopy(model).to(self.torch.bfloat16), narrow, more)

    def compare_spoken_in_16_bits(self, exact, models, inputs, more, what):
        """Two logits may be as near as a rounding, and other tokens are said from there on: rows are compared up to it."""
        narrow = [self.spoken_in_16_bits(model, inputs, more) for model in models]
        for i, wanted in enumerate(exact[1]):
            alike = self.torch.stack([(said[:, :i] == exact[0][:, :i]).all(-1) for said, _ in narrow]).all(0)
            self.as_near([logits[i][alike] for _, logits in narrow], wanted[alike], f"{what}: token {i}")


def step(torch, model, inputs, seen):
    """The values where a token is seen, the loss, and the gradients."""
    model.zero_grad(set_to_none=True)
    output = model(**inputs)
    values = output[0] if "loss" not in output else output.get("logits", output.get("logits_per_image"))
    loss = output["loss"] if "loss" in output else (values * torch.linspace(-1, 1, values.numel(), device=values.device).view(values.shape)).sum()
    loss.backward()
    values = values if seen is None else values[seen.bool()]
    return {"values": values.detach(), "loss": loss.detach(), **{name: p.grad for name, p in model.named_parameters() if p.grad is not None}}


def run(models, table, check):
    for name, config, given in table:
        models.calls = 0
        check(models.pair(name, config, given), name)
        assert models.calls, f"{name} never called the attention"
    print(f"{len(table)} models are right: {', '.join(name for name, *_ in table)}")


def inputs_of(models, side):
    """Tokens with padding on this side, and what of them is trained: nothing that a row of padding says, which sees no key."""
    tokens, padding = models.tokens(2, TOKENS), models.padding(side)
    before = models.torch.nn.functional.pad(padding, (1, 0))[:, :-1]
    return {"input_ids": tokens, "attention_mask": padding, "labels": tokens.masked_fill((padding & before) == 0, -100)}


def check_decoder(models, pair, name):
    for side in ("left", "right"):
        inputs = inputs_of(models, side)
        models.compare(pair, inputs, inputs["attention_mask"], f"{name}, padding {side}")
    tokens = models.tokens(2, TOKENS)
    models.compare(pair, {"input_ids": tokens, "labels": tokens}, None, name)
    models.generate(pair, {"input_ids": tokens, "attention_mask": models.padding("left")}, name)


def test_decoders():
    models = Models()
    run(models, DECODERS[:13], lambda *pair: check_decoder(models, *pair))


def test_more_decoders():
    models = Models()
    run(models, DECODERS[13:], lambda *pair: check_decoder(models, *pair))


def test_encoders_with_decoders():
    models = Models()

    def check(pair, name):
        for side in ("left", "right"):
            inputs = {**inputs_of(models, side), "labels": models.tokens(2, 7)}
            models.compare(pair, inputs, None, f"{name}, padding {side}")
        models.generate(pair, {name: inputs[name] for name in ("input_ids", "attention_mask")}, name)

    run(models, OF_TWO_PARTS, check)


def test_encoders():
    models = Models()

    def check(pair, name):
        for side in ("left", "right"):
            inputs = inputs_of(models, side)
            models.compare(pair, inputs, inputs["attention_mask"], f"{name}, padding {side}")

    run(models, ENCODERS, check)


def test_images():
    models = Models()
    pixels = models.torch.randn(2, 3, 24, 24, device=models.device)
    run(models, OF_IMAGES, lambda pair, name: models.compare(pair, {"pixel_values": pixels}, None, name))


def test_speech():
    """Whisper: sounds to tokens, with a cache of both kinds of keys."""
    models = Models()
    sounds = models.torch.randn(2, 8, 32, device=models.device)

    def check(pair, name):
        models.compare(pair, {"input_features": sounds, "labels": models.tokens(2, 7)}, None, name)
        models.generate(pair, {"input_features": sounds}, name)

    run(models, (("WhisperForConditionalGeneration", "WhisperConfig", SPEECH),), check)


def test_images_and_texts():
    """CLIP: each of its parts, and on processors both, in fp32 alone, as the loss multiplies what rounding leaves by 14."""
    models = Models()
    pixels = models.torch.randn(2, 3, 24, 24, device=models.device)

    def texts(side):
        inputs = inputs_of(models, side)
        inputs["input_ids"][:, -1] = 2  # the features of the text are those of this token
        return {name: inputs[name] for name in ("input_ids", "attention_mask")}

    def check_texts(pair, name):
        models.compare(pair, texts("right"), None, name)  # where each row sees a key, as the loss is of all

    def check(pair, name):
        for side in ("left", "right"):
            models.compare_exact(pair, {**texts(side), "pixel_values": pixels, "return_loss": True}, None, f"{name}, padding {side}")

    run(models, (("CLIPTextModel", "CLIPTextConfig", CLIP["text_config"]),), check_texts)
    run(models, (("CLIPVisionModel", "CLIPVisionConfig", IMAGE),), lambda pair, name: models.compare(pair, {"pixel_values": pixels}, None, name))
    if not models.gpu:
        run(models, (("CLIPModel", "CLIPConfig", CLIP),), check)


def test_models_with_their_own_attention_are_refused():
    models = Models()
    for name, config, given in WITH_THEIR_OWN:
        model = models.make(name, config, given, "eager")
        for part in model.modules():  # as from_pretrained sets it, but that Falcon's table of its own classes has no such name
            if hasattr(part, "config"):
                part.config._attn_implementation = NAME
        inputs = inputs_of(models, "left")
        for padding in (inputs["attention_mask"], None):  # without it there might be no mask, and none would be asked for
            refused(models.flashjit.UnsupportedError, [NAME, "attention of its own", "eager"], model, **{**inputs, "attention_mask": padding})
        assert not models.calls, name
    print(f"{len(WITH_THEIR_OWN)} models are refused: {', '.join(name for name, *_ in WITH_THEIR_OWN)}")


def test_a_model_of_two_kinds_of_configurations():
    """Its class is among those that all models are looked for in. It sets no flag, so both of its kinds are refused."""
    models = Models()
    transformers = models.transformers
    class OfTwoKinds(transformers.PreTrainedModel):
        pass
    OfTwoKinds.config_class = transformers.LlamaConfig | transformers.MistralConfig
    tokens = models.tokens(2, TOKENS)
    models.make("Qwen2ForCausalLM", "Qwen2Config", DECODER, NAME)(tokens)
    for kind in ("Llama", "Mistral"):
        model = models.make(f"{kind}ForCausalLM", f"{kind}Config", DECODER, NAME)
        refused(models.flashjit.UnsupportedError, ["OfTwoKinds", "attention of its own"], model, tokens)


def test_what_models_ask_of_attention():
    """Each word that they hand down is honoured, or refused."""
    models = Models()
    torch, flashjit = models.torch, models.flashjit
    attention = models.transformers.AttentionInterface()[NAME]
    module = torch.nn.Module()
    q, k, v = models.tensors(*[(2, 4, TOKENS, 16)] * 3)
    bias = torch.randn(1, 4, TOKENS, TOKENS, device=q.device, requires_grad=True)
    scaling = torch.tensor(0.3, device=q.device, requires_grad=True)
    seen = (torch.rand(2, 1, TOKENS, TOKENS, device=q.device) < 0.7) | torch.eye(TOKENS, dtype=torch.bool, device=q.device)
    triangle = torch.ones(TOKENS, TOKENS, dtype=torch.bool, device=q.device).tril()

    def theirs(mask, factor):
        s = (q.float() @ k.float().transpose(2, 3) * factor + bias).masked_fill(~mask, float("-inf"))
        return (s.softmax(-1) @ v.float()).transpose(1, 2)

    for mask, given in ((seen, seen), (triangle, None)):
        for factor in (0.25, scaling):
            got, wanted = attention(module, q, k, v, given, scaling=factor, position_bias=bias, sliding_window=TOKENS)[0], theirs(mask, factor)
            models.near(got, wanted, "position_bias", models.of_values)
            leaves = (bias, scaling) if factor is scaling else (bias,)
            for ours, exact in zip(torch.autograd.grad(got.float().square().sum(), leaves), torch.autograd.grad(wanted.square().sum(), leaves)):
                models.near(ours, exact, "a gradient", models.of_gradients)
    for name, value in (("output_attentions", True), ("cu_seq_lens_q", torch.tensor([0, TOKENS])), ("head_mask", torch.ones(4)), ("sinks", torch.ones(4)),
                        ("indices", torch.ones(4)), ("sliding_window", TOKENS - 1), ("position_bias", torch.ones(3, 4))):
        refused(flashjit.FlashJitError, name, attention, module, q, k, v, None, **{name: value})
    attention(module, q, k, v, None, output_attentions=False, head_mask=None, position_ids=torch.arange(TOKENS)[None])
    model = models.make("LlamaForCausalLM", "LlamaConfig", DECODER, NAME)
    refused(flashjit.UnsupportedError, "output_attentions", model, models.tokens(2, TOKENS), output_attentions=True)
    model = models.make("T5ForConditionalGeneration", "T5Config", T5, NAME)
    refused(flashjit.UnsupportedError, "output_attentions", model, models.tokens(2, TOKENS), labels=models.tokens(2, 7), output_attentions=True)


def test_compile():
    models = Models()
    model = models.make("LlamaForCausalLM", "LlamaConfig", DECODER, NAME).to(models.dtype)
    tokens = models.tokens(2, TOKENS)
    wanted = model(tokens, attention_mask=models.padding("left")).logits[:, 5:]
    compiled = models.torch.compile(model, backend="aot_eager", fullgraph=True)
    models.near(compiled(tokens, attention_mask=models.padding("left")).logits[:, 5:], wanted, "torch.compile", models.of_values)


if __name__ == "__main__":
    harness.main(globals())
