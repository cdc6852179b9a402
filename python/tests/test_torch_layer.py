"""The layer for torch against a dense twin in float64, and what autograd, checkpointing and torch.compile ask of it."""

import copy
import gc
import json
import pickle
import re

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import switchyard  # noqa: E402
from switchyard import _native  # noqa: E402
from conftest import ROOT, run_script  # noqa: E402
from switchyard.torch import MoELayer  # noqa: E402

SMALL = {
    "decoder_block": "mixtral",
    "base_emb_dim": 32,
    "base_moe_mlp_dim": 24,
    "base_mlp_dim": 24,
    "base_num_decoder_layers": 1,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "load_balance_loss_weight": 0.1,
}
STRATEGIES = {
    "one rank": {},
    "dense": {"sparse_matmul": False},
    "capacity": {"sparse_matmul": False, "capacity_factor": 8.0},
    "chunks": {"num_moe_token_chunks": 2},
    "2 ranks": {"ranks": 2, "ici_expert_parallelism": 2},
    "2 ranks, ring": {"ranks": 2, "ici_expert_parallelism": 2, "use_ring_of_experts": True},
    "2 ranks, tensor": {"ranks": 2, "ici_tensor_parallelism": 2},
    "4 ranks": {"ranks": 4, "ici_expert_parallelism": 4},
    "4 ranks, ring": {"ranks": 4, "ici_expert_parallelism": 4, "use_ring_of_experts": True},
    "4 ranks, fsdp": {"ranks": 4, "ici_expert_parallelism": 2, "ici_fsdp_parallelism": 2},
    "4 ranks, all fsdp": {"ranks": 4, "ici_fsdp_parallelism": 4},
    "4 ranks, dense": {"ranks": 4, "ici_data_parallelism": 4, "sparse_matmul": False},
    "4 ranks, context": {"ranks": 4, "ici_context_parallelism": 2, "ici_expert_parallelism": 2},
}
BOUND = 1e-5  # of the largest value, as in src/moe/strategy_test.cc


def settings_of(layer):
    return json.loads(_native.Settings.parse(layer._layer.settings.split("\n")).json())


def twin(settings, x, w, segments=None):
    """y and the balance loss of the layer, each expert on every token. `w`: parameters by name."""
    experts, slots = settings["num_experts"], settings["num_experts_per_tok"]
    logits = x @ w["gate"]
    score = settings["routed_score_func"]
    scores = logits.sigmoid() if score == "sigmoid" else logits.softmax(-1)
    choice = (scores + w["gate_bias"] if "gate_bias" in w else scores).detach()
    if settings["n_routing_groups"] > 0:
        groups = choice.unflatten(-1, (settings["n_routing_groups"], -1))
        best = groups.topk(2, -1).values.sum(-1).topk(settings["topk_routing_group"], -1).indices
        kept = torch.zeros_like(groups[..., 0]).scatter(-1, best, 1).bool()
        choice = groups.masked_fill(~kept[..., None], -torch.inf).flatten(-2)
    ids = choice.topk(slots, -1).indices
    weights = scores.gather(-1, ids)
    if settings["norm_topk_prob"] or settings["decoder_block"] == "mixtral":
        weights = weights / weights.sum(-1, keepdim=True)
    weights = torch.zeros_like(scores).scatter(-1, ids, weights * settings["routed_scaling_factor"])
    tokens = torch.ones(x.shape[:2], dtype=x.dtype) if segments is None else (segments != 0).to(x.dtype)
    weights = weights * tokens[..., None]
    hidden = torch.nn.functional.silu(torch.einsum("bsm,emh->bseh", x, w["wi_0"]))
    hidden = hidden * torch.einsum("bsm,emh->bseh", x, w["wi_1"])
    y = torch.einsum("bseh,ehm,bse->bsm", hidden, w["wo"], weights)
    if "shared_wo" in w:
        y = y + (torch.nn.functional.silu(x @ w["shared_wi_0"]) * (x @ w["shared_wi_1"])) @ w["shared_wo"]
    count = tokens.sum(1, keepdim=True)
    density = (torch.zeros_like(scores).scatter(-1, ids, 1.0) * tokens[..., None]).sum(1) / count / slots
    prob = (scores / scores.sum(-1, keepdim=True) * tokens[..., None]).sum(1) / count
    return y, settings["load_balance_loss_weight"] * experts**2 * (density * prob).mean()


def inputs(layer, dtype=torch.float32, rows=4, length=8):
    torch.manual_seed(1)
    with torch.no_grad():
        for name, p in (*layer.named_parameters(), *layer.named_buffers()):
            p.copy_(torch.randn(p.shape) * (0.3 if name == "gate_bias" else p.shape[-2] ** -0.5))
    width = layer._width
    return torch.randn(rows, length, width, dtype=dtype), torch.randn(rows, length, width, dtype=dtype)


def weights_in_double(layer):
    tensors = (*layer.named_parameters(), *layer.named_buffers())
    return {name: p.detach().double() for name, p in tensors}


def close(got, want, bound=BOUND):
    assert got is not None and got.shape == want.shape and want.abs().max() > 0
    worst = (got.double() - want.double()).abs().max() / want.double().abs().max()
    assert worst <= bound, f"{worst:.2e}"  # also where it is no number


def compare(layer, dloss=0.7, bound=BOUND, segments=None, dtype=torch.float32):
    x, dy = inputs(layer, dtype)
    x.requires_grad_()
    y, balance = layer(x, segments)
    torch.autograd.backward((y, balance), (dy, torch.tensor(dloss)))
    settings, w = settings_of(layer), weights_in_double(layer)
    trained = {name: w[name] for name, _ in layer.named_parameters()}
    (want, want_balance), back = torch.func.vjp(
        lambda x, t: twin(settings, x, {**w, **t}, segments), x.detach().double(), trained
    )
    dx, gradients = back((dy.double(), torch.tensor(dloss, dtype=torch.float64)))
    close(y.detach(), want, bound)
    close(balance.detach()[None], want_balance[None], bound)
    close(x.grad, dx, bound)
    assert len(gradients) >= 4
    for name, p in layer.named_parameters():
        close(p.grad, gradients[name], bound)


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES.keys())
def test_equals_the_dense_twin(strategy):
    compare(MoELayer(**SMALL, **strategy))


@pytest.mark.parametrize("ranks", (1, 2, 4))
def test_equals_the_twin_of_a_deepseek_layer(ranks):
    keys = {"ranks": ranks, "ici_expert_parallelism": ranks, "load_balance_loss_weight": 0.1}
    compare(MoELayer("deepseek3-tiny", **keys, n_routing_groups=4, topk_routing_group=2))


def test_padding_gets_zeros():
    layer = MoELayer(**SMALL)
    segments = torch.ones(4, 8, dtype=torch.int64)
    segments[:, 5:] = 0
    compare(layer, segments=segments)
    assert layer(inputs(layer)[0], segments)[0][:, 5:].abs().max() == 0


def test_bfloat16_stays_near():
    compare(MoELayer(**SMALL, dtype=torch.bfloat16, float32_gate_logits=True), bound=0.05, dtype=torch.bfloat16)


class Block(torch.nn.Module):
    def __init__(self, experts):
        super().__init__()
        self.mix = torch.nn.Linear(32, 32)
        self.experts = experts

    def forward(self, x):
        x = x + torch.tanh(self.mix(x))
        y, balance = self.experts(x)
        return x + y, balance


class Twin(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.settings = settings_of(layer)
        for name, p in layer.named_parameters():
            self.register_parameter(name, torch.nn.Parameter(p.detach().double()))

    def forward(self, x):
        return twin(self.settings, x, dict(self.named_parameters()))


def test_two_blocks_train_as_the_twin_does():
    torch.manual_seed(3)
    layers = [MoELayer(**SMALL, ranks=2, ici_expert_parallelism=2) for _ in range(2)]
    ours = torch.nn.ModuleList(Block(layer) for layer in layers)
    theirs = torch.nn.ModuleList(Block(Twin(layer)).double() for layer in layers)
    for mine, other in zip(ours, theirs):
        other.mix.load_state_dict(mine.mix.state_dict())
    x, target = torch.randn(4, 8, 32), torch.randn(4, 8, 32)
    losses = []
    for model, kind in ((ours, torch.float32), (theirs, torch.float64)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        losses.append([])
        for _ in range(50):
            hidden, balances = x.to(kind), []
            for block in model:
                hidden, balance = block(hidden)
                balances.append(balance)
            loss = (hidden - target.to(kind)).square().mean() + sum(balances) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[1][-1] < 0.8 * losses[1][0]
    assert losses[0] == pytest.approx(losses[1], rel=2e-4)


def gradients(layer, x, run):
    layer.zero_grad()
    leaf = x.clone().requires_grad_()
    run(leaf).backward()
    return [leaf.grad, *(p.grad for p in layer.parameters())]


def plain(layer):
    def run(leaf):
        y, balance = layer(leaf)
        return y.square().sum() + balance

    return run


def test_checkpointing_and_compile_give_the_same():
    layer = MoELayer(**SMALL)
    x, _ = inputs(layer)
    want = gradients(layer, x, plain(layer))

    def checkpointed(leaf):
        y, balance = torch.utils.checkpoint.checkpoint(layer, leaf, use_reentrant=False)
        return y.square().sum() + balance

    compiled = torch.compile(plain(layer), fullgraph=True, backend="aot_eager")
    for run in (checkpointed, compiled, torch.compile(plain(layer), fullgraph=True)):
        for got, one in zip(gradients(layer, x, run), want):
            close(got, one)


def test_several_forwards_before_a_backward():
    layer = MoELayer(**SMALL, ranks=2, ici_expert_parallelism=2)
    x, _ = inputs(layer)
    one, two = (gradients(layer, x * scale, plain(layer)) for scale in (1, 2))
    layer.zero_grad()
    leaves = [(x * scale).requires_grad_() for scale in (1, 2)]
    losses = [plain(layer)(leaf) for leaf in leaves]
    layer(leaves[0])  # without a backward
    for loss in losses:
        loss.backward()
    close(leaves[0].grad, one[0])
    close(leaves[1].grad, two[0])
    close(layer.wo.grad, one[4] + two[4])


def test_what_no_backward_takes_is_freed():
    layer = MoELayer(**SMALL)
    x, _ = inputs(layer)
    before = _native.layers_kept()
    held = [layer(x) for _ in range(3)]
    assert _native.layers_kept() == before + 3
    with torch.no_grad():
        layer(x)
    assert _native.layers_kept() == before + 3
    del held
    gc.collect()
    assert _native.layers_kept() == before


def test_frozen_weights_and_outputs_that_nobody_uses():
    layer = MoELayer(**SMALL)
    x, dy = inputs(layer)
    want = gradients(layer, x, lambda leaf: (layer(leaf)[0] * dy).sum())
    layer.zero_grad()
    layer.wi_0.requires_grad_(False)
    leaf = x.clone().requires_grad_()
    (layer(leaf)[0] * dy).sum().backward()
    assert layer.wi_0.grad is None
    close(leaf.grad, want[0])
    close(layer.wo.grad, want[4])
    layer.zero_grad()
    layer(leaf)[1].backward()
    assert layer.gate.grad.abs().max() > 0 and layer.wo.grad.abs().max() == 0
    y, _ = layer(x)
    (only,) = torch.autograd.grad((y * dy).sum(), layer.wo)
    close(only, want[4])
    for p in layer.parameters():
        p.requires_grad_(False)
    assert not layer(x)[0].requires_grad


def test_backward_twice_and_changes_in_place():
    layer = MoELayer(**SMALL)
    x, dy = inputs(layer)
    y, _ = layer(x)
    first = torch.autograd.grad((y * dy).sum(), layer.wo, retain_graph=True)[0]
    close(torch.autograd.grad((y * dy).sum(), layer.wo)[0], first)
    y, _ = layer(x)
    y += 1  # the result is the caller's own
    close(torch.autograd.grad((y * dy).sum(), layer.wo)[0], first)
    y, _ = layer(x)
    with torch.no_grad():
        layer.wo.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (y * dy).sum().backward()


def test_a_second_derivative_fails_in_words():
    layer = MoELayer(**SMALL)
    x, _ = inputs(layer)
    x.requires_grad_()
    (dx,) = torch.autograd.grad(layer(x)[0].square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        dx.sum().backward()


def test_autocast_computes_in_bfloat16():
    layer = MoELayer(**SMALL)
    x, _ = inputs(layer)
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = layer(x)
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert layer.wo.grad.dtype == torch.float32
    with torch.autocast("cpu", torch.float16), pytest.raises(switchyard.UsageError, match="got float16"):
        layer(x)


def test_copies_and_pickles_share_the_ranks():
    layer = MoELayer(**SMALL)
    x, _ = inputs(layer)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other._layer is layer._layer and other.wo is not layer.wo
        assert torch.equal(other(x)[0], layer(x)[0])


def test_wrong_input_gets_one_line():
    layer = MoELayer(**SMALL)
    x, _ = inputs(layer)
    cases = [
        (lambda: layer(x.half()), "got float16"),
        (lambda: layer(x[..., :16]), r"expected \[B, S, 32\]"),
        (lambda: layer(x[0]), r"expected \[B, S, 32\]"),
        (lambda: layer(x, torch.ones(4, 7, dtype=torch.int32)), "segments"),
        (lambda: layer(x, torch.ones(4, 8)), "segments"),
        (lambda: MoELayer(**SMALL, dtype=torch.float16), "float16"),
        (lambda: MoELayer(**SMALL, weight_dtype="float32"), "weight_dtype"),
        (lambda: MoELayer("deepseek3-tiny", load_parameters_path="x"), "load_parameters_path"),
        (lambda: MoELayer("deepseek3-tyni"), "deepseek3-t"),
        (lambda: MoELayer("qwen3-0.6b"), "no MoE layer"),
        (lambda: MoELayer.from_transformers(torch.nn.Linear(2, 2)), "got Linear"),
        (lambda: MoELayer(**SMALL, num_moe_token_chunks=3)(x), "num_moe_token_chunks"),
    ]
    for call, words in cases:
        with pytest.raises(switchyard.UsageError, match=words) as raised:
            call()
        assert "\n" not in str(raised.value)


def transformers_block(kind):
    models = pytest.importorskip("transformers", reason="transformers is not installed").models
    shape = {"hidden_size": 32, "num_experts_per_tok": 2}
    if kind == "qwen3":
        from transformers.models.qwen3_moe import modeling_qwen3_moe as m

        config = models.qwen3_moe.Qwen3MoeConfig(**shape, moe_intermediate_size=24, num_experts=8, norm_topk_prob=False)
        return m.Qwen3MoeSparseMoeBlock(config)
    if kind == "mixtral":
        from transformers.models.mixtral import modeling_mixtral as m

        return m.MixtralSparseMoeBlock(models.mixtral.MixtralConfig(**shape, intermediate_size=24, num_local_experts=8))
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as m

    config = models.deepseek_v3.DeepseekV3Config(
        **shape, moe_intermediate_size=24, n_routed_experts=8, n_group=4, topk_group=2, n_shared_experts=2
    )
    return m.DeepseekV3MoE(config)


@pytest.mark.parametrize("kind", ("qwen3", "mixtral", "deepseek3"))
def test_equals_the_block_of_transformers(kind):
    block = transformers_block(kind)
    torch.manual_seed(5)
    with torch.no_grad():
        for name, p in (*block.named_parameters(), *block.named_buffers()):
            p.copy_(torch.randn(p.shape) * (0.1 if "bias" in name else 0.2))
    layer = MoELayer.from_transformers(block)
    x = torch.randn(2, 6, 32)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    want = block(theirs)
    want.square().sum().backward()
    y, _ = layer(ours)
    y.square().sum().backward()
    close(y.detach(), want.detach())
    close(ours.grad, theirs.grad)
    close(layer.gate.grad, block.gate.weight.grad.T)
    close(layer.wo.grad, block.experts.down_proj.grad.transpose(1, 2))
    close(torch.cat((layer.wi_0.grad, layer.wi_1.grad), 2), block.experts.gate_up_proj.grad.transpose(1, 2))


def test_a_process_ends_quietly_while_a_layer_works():
    # The thread is in the engine's calls alone: those of torch end the process there by themselves.
    script = """
import torch
from switchyard.torch import MoELayer
layer = MoELayer("deepseek3-tiny", ranks=2, ici_expert_parallelism=2)
x = torch.randn(2, 8, 64)
kept = layer(x)
native, weights = layer._layer.native, [layer._weight(name).detach() for name in layer._order]
def forever():
    while True: native.forward(x, None, weights, [False] * (len(weights) + 1))
threading.Thread(target=forever, daemon=True).start()
time.sleep(0.3)
"""
    assert run_script(script) == (0, "", "")


def test_a_fork_is_refused():
    script = """
import torch
from switchyard.torch import MoELayer
layer = MoELayer("deepseek3-tiny")
x = torch.randn(2, 8, 64)
layer(x)
if os.fork() == 0:
    try: layer(x)
    except switchyard.UsageError as error: print(error, flush=True)
    os._exit(0)
os.wait()
"""
    code, out, _ = run_script(script)
    assert code == 0 and "fork" in out


def test_the_examples_run(capsys):
    script = ROOT / "examples/python/layer_in_torch.py"
    exec(compile(script.read_text(), str(script), "exec"), {})
    losses = [float(loss) for loss in re.findall(r"loss ([0-9.]+)", capsys.readouterr().out)]
    assert losses[-1] < 0.1 < losses[0]
    block, _ = re.findall(r"```py\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL)
    exec(compile(block, "docs/python.md", "exec"), {})
    assert "[64, 16]" in capsys.readouterr().out
