"""A row of a table is a problem that is run. Some rows of ours are held against each other."""
import dataclasses

SOFTCAP = 50.0
WINDOW = 1024  # visible keys


@dataclasses.dataclass(frozen=True)
class Row:
    table: str
    d: int
    mask: str             # full, causal, window, tree, blocks, documents
    s: int                # packed: the longest document
    b: int                # packed: the number of documents
    heads: int
    kv_heads: int
    dtype: str = "bf16"
    score: str = "plain"  # plain, softcap, alibi, bias_bf16, bias_fp32
    data: str = "normal"  # a key of DATA
    queries: int = 0      # number of queries, if it is not that of the keys
    q_lens: tuple = ()    # number of queries of each sequence, packed, beside keys in pages
    lengths: tuple = ()   # lengths of the sequences, if they are not all `s`; `s` is the longest
    page: int = 0         # tokens of a page, if keys lie in pages
    prefix: int = 0       # number of tokens, in the same pages, that all sequences begin with
    d_v: int = 0          # columns of V, if they are not as many as those of K
    numerics: str = ""    # the spec's, if it is not the default
    grads: str = ""       # parameters that have gradients
    dropout: float = 0.0
    compute: str = ""      # the spec's: what Q, K and V of 16 bits become first
    linear: bool = False   # for 8 bits: weights may be interpolated
    kv: str = ""           # elements of K and V, if they are not those of Q
    append: bool = False   # The call writes the last tokens into the cache, and turns them and Q.
    threads: int = 0       # processor only
    block: int = 0         # tokens of a block, if lists tell which are seen
    listed: int = 0        # blocks of each list
    documents: tuple = ()  # lengths, if a tensor has the numbers of documents
    chosen: int = 0        # keys that each query has chosen
    pages: int = 0         # or pages, for each KV head
    shared: int = 0        # number of these pages that all queries of a sequence have chosen
    best: int = 0          # keys that an index lists; 0: it gives their scores

    @property
    def packed(self):
        """Returns whether documents follow one another, queries and keys alike."""
        return bool(self.lengths) and not self.page

    @property
    def v_in_k(self):
        """Returns whether V is the first columns of K."""
        return self.table in ("mla", "latents", "sparse_decode", "sparse_prefill")

    @property
    def backward(self):
        return self.table in ("backward", "training", "cpu_backward", "drawn_backward", "sparse_backward")

    @property
    def layout(self):
        in_pages = f"paged({self.page})" if self.page else ""
        return "packed" if self.packed or self.table == "sparse_prefill" or (self.table == "index" and not self.page) else f"packed/{in_pages}" if self.q_lens else in_pages or "bhsd"

    @property
    def keys(self):
        """Returns the keys of each sequence."""
        return self.lengths or (self.s,) * self.b

    @property
    def spec(self):
        return self.spec_of("index" if self.table == "index" else "bwd" if self.backward else "fwd")

    def spec_of(self, operation):
        queries = f" q_len={self.queries}" if self.queries and self.layout != "packed" else ""
        heads = str(self.heads) if self.heads == self.kv_heads else f"{self.heads}/{self.kv_heads}"
        mask = {"full": "", "causal": ' mask="causal"', "window": f' mask="causal & window({WINDOW - 1}, 0)"',
                "tree": ' mask="tree(ancestors)"', "blocks": "", "documents": ' mask="document(doc) & causal"'}[self.mask]
        score = {"plain": "", "softcap": f' score="softcap({SOFTCAP:g})"', "alibi": ' score="alibi"',
                 "bias_bf16": ' score="bias(table, bf16)"', "bias_fp32": ' score="bias(table)"'}[self.score]
        numerics = f" numerics={self.numerics}" if self.numerics else ""
        dims = f"{self.d}/{self.d_v}" if self.d_v else self.d
        more = (" v_in_k" if self.v_in_k else "") + (" shared_prefix" if self.prefix else "")
        more += f' grads="{self.grads}"' if self.grads and operation == "bwd" else ""
        more += f" dropout={self.dropout:g}" if self.dropout else ""
        more += f" compute={self.compute}" if self.compute else ""
        more += " linear_exp" if self.linear else ""
        more += f" kv={self.kv}" if self.kv else ""
        more += f" append rope=half({self.d})" if self.append else ""
        more += f" blocks={self.block}" if self.block else ""
        more += f" select=keys({self.chosen or self.best})" if self.chosen or self.best else f" select=pages({self.pages})" if self.pages else ""
        more += " token_scales" if operation == "index" and self.dtype == "e4m3" else ""
        return f"{operation} {self.dtype} d={dims} heads={heads} layout={self.layout}{queries}{mask}{score}{more}{numerics}"

    @property
    def unshared(self):
        """Returns the spec of a caller who does not know that sequences share anything."""
        return self.spec.replace(" shared_prefix", "")

    @property
    def shape(self):
        """Returns the shape as a hint for prepare. If there are several lengths, it has the mean."""
        s = -(-sum(self.keys) // self.b)
        return f"b={self.b},q={self.queries or max(self.q_lens, default=s)},k={s}"

    @property
    def name(self):
        sizes = f"documents={self.b} tokens={sum(self.lengths)}" if self.packed else f"b={self.b} s={self.s}"
        if self.page and self.lengths:
            sizes = f"b={self.b} s={min(self.lengths)}..{self.s} tokens={sum(self.lengths)}"
        shared = f", {self.shared} pages shared" if self.shared else ""
        return f"{sizes} {self.spec}{shared}" + (f", {self.data}" if self.table == "data" else "")

    @property
    def flops(self):
        """Counts 2 (d of K + d of V) per visible score, for gradients 6 d of K + 4 d of V. The diagonal counts half, as
        usual."""
        d_v = self.d_v or self.d
        if self.q_lens:
            return 4.0 * self.d * self.heads * sum(q * (k - q / 2) for q, k in zip(self.q_lens, self.keys))
        if self.table == "index":
            return 2.0 * self.d * self.heads * self.b * self.queries * (self.s - self.queries / 2 if self.mask == "causal" else self.s)
        of_score = 6.0 * self.d + 4.0 * d_v if self.backward else 2.0 * (self.d + d_v)
        if self.queries:
            return of_score * self.heads * self.queries * self.read_keys
        visible = {"full": lambda n: n * n, "causal": lambda n: n * n / 2,
                   "window": lambda n: min(n, WINDOW) * (n - min(n, WINDOW) / 2), "blocks": lambda n: n * self.listed * self.block,
                   "documents": lambda n: sum(length ** 2 / 2 for length in self.documents)}[self.mask]
        return of_score * self.heads * sum(visible(n) for n in self.keys)

    @property
    def read_keys(self):
        """Returns the keys that a query of each sequence reads."""
        return (self.chosen or self.pages * self.page) * self.b if self.chosen or self.pages else sum(self.keys)

    @property
    def kv_bytes(self):
        row_bytes = 656 if self.kv == "latent656" else (1 if self.kv or (self.table, self.dtype) == ("index", "e4m3") else 2) * self.d
        queries = self.queries if self.chosen or self.pages else 1
        return (1 if self.v_in_k or self.table == "index" else 2) * float(self.read_keys) * queries * self.kv_heads * row_bytes

    def shown(self):
        return {key: value for key, value in dataclasses.asdict(self).items() if value not in (0, ())}


@dataclasses.dataclass(frozen=True)
class Ratio:
    """This is a row of ours against another row of ours: TFLOP/s over TFLOP/s, at least `limit`; time over time, or us
    more, at most."""
    what: str
    row: Row
    base: Row
    kind: str  # rate, time, more
    limit: float  # None: shown only


@dataclasses.dataclass(frozen=True)
class Sum:
    """This is the time of a row over the sum of those of others, at most `limit`."""
    what: str
    row: Row
    parts: tuple
    limit: float
