"""DeepSeek-V2 family under pipeline parallelism: the gemm-output size comes from the configuration.

`DeepseekV2Model.__init__` reads `embed_tokens.embedding_dim`, but only stages that embed hold an embedding: the first, and the last
one under speculation. Every other stage holds a placeholder, so with 256 routed experts on gfx95 loading ends in an AttributeError: with
--pp-size above 2 under EAGLE, above 1 without. `config.hidden_size` is what the embedding was built with.

The same block walks all layers, and those of other stages are placeholders without an `mlp`. It is reached with a hidden size of
7168 alone (DeepSeek-V3, not GLM-5.2); it now walks the stage's own layers. `models/glm5_next.py` has the same defect and is not touched.
"""
from patchlib import Edit, Need, Patch

FILE = "srt/models/deepseek_v2.py"

CONDITION = '''            and config.n_routed_experts == 256
            and self.embed_tokens.embedding_dim == 7168
        ):
            num_moe_layers = sum(
                [
                    1
                    for i in range(len(self.layers))
                    if isinstance(self.layers[i].mlp, DeepseekV2MoE)
                ]
            )

            allocate_size = 0
            for i in range(len(self.layers)):
'''
CONDITION_NEW = '''            and config.n_routed_experts == 256
            and config.hidden_size == 7168
        ):
            # Layers of other pipeline stages are placeholders.
            infera_stage_layers = range(self.start_layer, self.end_layer)
            num_moe_layers = sum(
                [
                    1
                    for i in infera_stage_layers
                    if isinstance(self.layers[i].mlp, DeepseekV2MoE)
                ]
            )

            allocate_size = 0
            for i in infera_stage_layers:
'''

SIZE = '''                    allocate_size,
                    self.embed_tokens.embedding_dim,
                )
'''
SIZE_NEW = '''                    allocate_size,
                    config.hidden_size,
                )
'''

PATCH = Patch(
    edits=(Edit(FILE, ((CONDITION, CONDITION_NEW),)), Edit(FILE, ((SIZE, SIZE_NEW),))),
    needs=(
        Need(FILE, "def pp_stage_needs_embedding(", "which stages hold an embedding", 1),
        Need(FILE, '''            self.embed_tokens = VocabParallelEmbedding(
                config.vocab_size,
                config.hidden_size,
''', "the embedding is built with config.hidden_size", 1),
        Need(FILE, "        self.layers, self.start_layer, self.end_layer = make_pp_layers(", "the stage's own layers", 1),
    ),
    markers={FILE: "infera_stage_layers"},
    evidence="DeepseekV2Model sizes the gemm output from config.hidden_size and walks its stage's layers",
)
