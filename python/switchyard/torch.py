"""The Mixture-of-Experts layer of a model as a module of torch.

    layer = switchyard.torch.MoELayer("deepseek3-tiny", ranks=2, ici_expert_parallelism=2)
    y, balance_loss = layer(x)   # x [B, S, M], float32 or bfloat16, in the CPU's memory

Layers with equal settings share their ranks: a layer holds parameters alone.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.dlpack import from_dlpack

from . import _native
from ._arguments import words_of
from ._errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._keys import Keys

_TYPES = (torch.float32, torch.bfloat16)


class _Layer:
    """The engine's layer of one line of settings."""

    def __init__(self, settings: str) -> None:
        self.settings = settings
        self.native = _native.MoeLayer.open(_native.Settings.parse(settings.split("\n")))

    def __reduce__(self) -> Any:  # copies and other processes use, or make, the one of these settings
        return _layer_of, (self.settings,)


_layers: weakref.WeakValueDictionary[str, _Layer] = weakref.WeakValueDictionary()
_opening = threading.Lock()


def _layer_of(settings: str) -> _Layer:
    with _opening:
        layer = _layers.get(settings)
        if layer is None:
            layer = _layers[settings] = _Layer(settings)
        return layer


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous()


def _run(settings: str, x: Tensor, segments: Tensor | None, weights: list[Tensor], wanted: list[bool]) -> Any:
    plain = None if segments is None else _plain(segments)
    return _layer_of(settings).native.forward(_plain(x), plain, [_plain(w) for w in weights], wanted)


@torch.library.custom_op("switchyard::moe", mutates_args=(), device_types="cpu")
def _moe(
    settings: str, x: Tensor, segments: Tensor | None, weights: list[Tensor], wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the balance loss, and the ticket of what the engine keeps for the backward, freed with its memory."""
    y, balance_loss, ticket = _run(settings, x, segments, weights, wanted)
    return from_dlpack(y), torch.tensor(balance_loss, dtype=torch.float32), from_dlpack(ticket)


@_moe.register_fake
def _(settings, x, segments, weights, wanted):  # type: ignore[no-untyped-def]
    empty = torch.empty_like(x, memory_format=torch.contiguous_format)
    return empty, x.new_empty((), dtype=torch.float32), x.new_empty((1,), dtype=torch.int64)


@torch.library.custom_op("switchyard::moe_backward", mutates_args=(), device_types="cpu")
def _moe_backward(
    settings: str,
    ticket: Tensor,
    x: Tensor,
    segments: Tensor | None,
    weights: list[Tensor],
    dy: Tensor | None,
    dloss: Tensor | None,
    wanted: list[bool],
) -> list[Tensor]:
    """The gradients that are wanted, of x and the weights."""
    native = _layer_of(settings).native
    rest = None if dy is None else _plain(dy), 0.0 if dloss is None else float(dloss), wanted
    made = native.backward(int(ticket), *rest)
    if made is None:  # an earlier backward of this forward took it, or the ticket was copied
        _, _, again = _run(settings, x, segments, weights, wanted)
        made = native.backward(int(from_dlpack(again)), *rest)
        assert made is not None
    return [from_dlpack(gradient) for gradient in made]


@_moe_backward.register_fake
def _(settings, ticket, x, segments, weights, dy, dloss, wanted):  # type: ignore[no-untyped-def]
    return [
        torch.empty_like(tensor, memory_format=torch.contiguous_format)
        for tensor, is_wanted in zip((x, *weights), wanted)
        if is_wanted
    ]


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.settings, x, segments, weights, ctx.wanted = inputs
    # With x and the weights autograd sees when they were changed before the backward.
    ctx.save_for_backward(output[2], x, segments, *weights)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, dy: Tensor | None, dloss: Tensor | None, _: Any) -> Any:
    ticket, x, segments, *weights = ctx.saved_tensors
    needed = ctx.needs_input_grad
    of_weights = needed[3] if isinstance(needed[3], (list, tuple)) else [needed[3]] * len(weights)
    wanted = [bool(a and b) for a, b in zip((needed[1], *of_weights), ctx.wanted)]
    if not any(wanted) or (dy is None and dloss is None):
        return None, None, None, [None] * len(weights), None
    made = iter(_moe_backward(ctx.settings, ticket, x, segments, list(weights), dy, dloss, wanted))
    gradients = [next(made) if is_wanted else None for is_wanted in wanted]
    return None, gradients[0], None, gradients[1:], None


def _no_second(ctx: Any, *_: Any) -> Any:
    raise RuntimeError("switchyard.torch: the layer has no second derivative")


_moe.register_autograd(_backward, setup_context=_setup)
_moe_backward.register_autograd(_no_second)


class MoELayer(nn.Module):
    """The MoE layer of the model that `model` and `keys` describe, as `switchyard train` would run it.

    `model` is a model_name, `config` a mapping of keys or the path of a YAML file, `keys` are config keys, of which
    `ranks` and the parallelism keys say how the layer is spread. Parameters, of type `dtype` (float32 or bfloat16;
    torch's default): `gate` [M, E], `wi_0`, `wi_1` [E, M, H], `wo` [E, H, M], `shared_wi_0` and so on; `gate_bias` is
    a buffer. The layer computes in the type of x. UsageError for settings that make no layer.
    """

    def __init__(  # type: ignore[misc]  # a key is named dtype, too
        self,
        model: str | None = None,
        /,
        config: Mapping[str, Any] | str | None = None,
        *,
        dtype: torch.dtype | None = None,
        **keys: Unpack[Keys],
    ) -> None:
        super().__init__()
        for key in ("dtype", "weight_dtype"):
            if key in keys or (isinstance(config, Mapping) and key in config):
                raise UsageError(f"{key}: the layer computes in the type of x; MoELayer(dtype=…) is its parameters'")
        dtype = dtype or torch.get_default_dtype()
        if dtype not in _TYPES:
            raise UsageError(f"dtype={dtype}: expected torch.float32 or torch.bfloat16")
        if model is not None:
            keys = {"model_name": model, **keys}
        self._layer = _layer_of("\n".join(words_of(None, config, keys)))
        self._width = self._layer.native.width()
        self._order: list[str] = []
        for name, shape, deviation, trained in self._layer.native.weights():
            own = name.replace(".", "_")
            self._order.append(own)
            if own == "gate_bias" and not trained:
                self.register_buffer(own, torch.zeros(shape, dtype=torch.float32))
                continue
            weight = torch.zeros(shape, dtype=torch.float32)
            if deviation > 0:
                nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)
            self.register_parameter(own, nn.Parameter(weight.to(dtype), requires_grad=trained))

    def forward(self, x: Tensor, segments: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """y [B, S, M] in the type of x, and the balance loss, which load_balance_loss_weight has multiplied.

        `segments` [B, S] of integers: 0 is padding, which gets zeros. A model adds the mean of its layers' balance
        losses to its loss.
        """
        if torch.is_autocast_enabled("cpu"):
            x = x.to(torch.get_autocast_dtype("cpu"))
        if x.dtype not in _TYPES:
            raise UsageError(f"x: expected float32 or bfloat16, got {str(x.dtype).removeprefix('torch.')}")
        if x.ndim != 3 or x.shape[2] != self._width:
            raise UsageError(f"x: expected [B, S, {self._width}], got {list(x.shape)}")
        if segments is not None:
            if segments.is_floating_point() or segments.shape != x.shape[:2]:
                raise UsageError(f"segments: expected integers [B, S] = {list(x.shape[:2])}")
            segments = segments.to(torch.int32)
        weights = [self._weight(name) for name in self._order]
        for name, tensor in zip(("x", *self._order), (x, *weights)):
            if tensor.device.type != "cpu":
                raise UsageError(f"{name}: expected a tensor in the CPU's memory, got one on {tensor.device}")
            if tensor.dtype not in _TYPES:
                kind = str(tensor.dtype).removeprefix("torch.")
                raise UsageError(f"{name}: expected float32 or bfloat16, got {kind}")
        grad = torch.is_grad_enabled()
        wanted = [grad and tensor.requires_grad for tensor in (x, *weights)]
        y, balance_loss, _ = _moe(self._layer.settings, x, segments, weights, wanted)
        return y, balance_loss

    def _weight(self, name: str) -> Tensor:
        tensor: Tensor = getattr(self, name)
        return tensor.float() if name == "gate_bias" else tensor  # whatever type the module was cast to

    def extra_repr(self) -> str:
        return ", ".join(self._layer.settings.split("\n"))

    @classmethod
    def from_transformers(cls, block: Any, **keys: Unpack[Keys]) -> MoELayer:
        """The layer of a block of transformers (Qwen3MoeSparseMoeBlock, MixtralSparseMoeBlock, DeepseekV3MoE), with
        copies of its weights in their types. `keys` are further config keys. UsageError for other blocks."""
        kind = type(block).__name__
        if kind not in _BLOCKS:
            raise UsageError(f"from_transformers: expected one of {', '.join(_BLOCKS)}, got {kind}")
        act = type(block.experts.act_fn).__name__
        if act not in ("SiLU", "SiLUActivation"):
            raise UsageError(f"from_transformers: expected experts with silu, got {act}")
        if getattr(block, "jitter_noise", 0):
            raise UsageError(f"from_transformers: router_jitter_noise={block.jitter_noise}: the layer adds no noise")
        gate_up, down = block.experts.gate_up_proj.detach(), block.experts.down_proj.detach()
        experts, width, hidden = down.shape
        settings = {
            "base_emb_dim": width,
            "base_moe_mlp_dim": hidden,
            "base_mlp_dim": hidden,
            "num_experts": experts,
            "num_experts_per_tok": block.gate.top_k,
            "base_num_decoder_layers": 1,
            **_BLOCKS[kind](block),
        }
        layer = cls(None, None, dtype=down.dtype, **{**settings, **keys})
        tensors: dict[str, Any] = {
            "gate": block.gate.weight.T,
            "wi_0": gate_up[:, :hidden].transpose(1, 2),
            "wi_1": gate_up[:, hidden:].transpose(1, 2),
            "wo": down.transpose(1, 2),
            "gate_bias": getattr(block.gate, "e_score_correction_bias", None),
        }
        if shared := getattr(block, "shared_experts", None):
            tensors |= {
                "shared_wi_0": shared.gate_proj.weight.T,
                "shared_wi_1": shared.up_proj.weight.T,
                "shared_wo": shared.down_proj.weight.T,
            }
        with torch.no_grad():
            for name in layer._order:
                own, given = getattr(layer, name), tensors[name]
                if own.shape != given.shape:
                    raise UsageError(f"from_transformers: {name} {list(own.shape)}, the block has {list(given.shape)}")
                own.data = given.to(own.dtype if name == "gate_bias" else given.dtype, copy=True).contiguous()
        return layer


def _qwen3(block: Any) -> dict[str, Any]:
    return {"decoder_block": "qwen3_moe", "norm_topk_prob": bool(block.gate.norm_topk_prob)}


def _mixtral(block: Any) -> dict[str, Any]:
    return {"decoder_block": "mixtral"}


def _deepseek3(block: Any) -> dict[str, Any]:
    gate = block.gate
    groups = gate.num_group > 1
    return {
        "decoder_block": "deepseek",
        "attention_type": "mla",
        "first_num_dense_layers": 0,
        "routed_score_func": "sigmoid",
        "routed_bias": True,
        "float32_gate_logits": True,
        "norm_topk_prob": bool(gate.norm_topk_prob),
        "routed_scaling_factor": float(gate.routed_scaling_factor),
        "n_routing_groups": gate.num_group if groups else -1,
        "topk_routing_group": gate.topk_group if groups else -1,
        "shared_experts": block.shared_experts.gate_proj.weight.shape[0] // block.experts.down_proj.shape[2],
    }


_BLOCKS = {"Qwen3MoeSparseMoeBlock": _qwen3, "MixtralSparseMoeBlock": _mixtral, "DeepseekV3MoE": _deepseek3}
