"""Trains a small model of torch whose MLPs are Switchyard's layers of experts, each spread over two ranks."""

import torch
from switchyard.torch import MoELayer

WIDTH, LENGTH, WORDS = 32, 16, 64
EXPERTS = {
    "decoder_block": "mixtral",
    "base_emb_dim": WIDTH,
    "base_moe_mlp_dim": 48,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "load_balance_loss_weight": 0.01,
    "ranks": 2,
    "ici_expert_parallelism": 2,
}


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.norm = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.attention = torch.nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.experts = MoELayer(config=EXPERTS)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mask = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        h = self.before(x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        y, balance_loss = self.experts(self.norm(x))
        return x + y, balance_loss


torch.manual_seed(0)
embedding, head = torch.nn.Embedding(WORDS, WIDTH), torch.nn.Linear(WIDTH, WORDS)
model = torch.nn.ModuleList([embedding, Block(), Block(), head])
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(100):
    start = torch.randint(WORDS, (8, 1))
    tokens = (start + 5 * torch.arange(LENGTH + 1)) % WORDS  # each word is five after the one before
    x, first = model[1](embedding(tokens[:, :-1]))
    x, second = model[2](x)
    loss = torch.nn.functional.cross_entropy(head(x).flatten(0, 1), tokens[:, 1:].flatten()) + (first + second) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 33 == 0:
        print(f"step {step}: loss {loss.item():.3f}")
