"""A whole model on the kernels."""

from kernels.rule import (
    chunk_gated_delta_rule,
    fused_recurrent_gated_delta_rule,
)

FEW = 16  # tokens: up to about here one pass of the loop is done first


def kernel_rule(q, k, v, g, beta, S=None):
    """The delta rule with a layer's arguments (see `delta_rule`).

    Raw q and k, S [B, Hv, dk, dv] or None -> out, the new S.
    """
    few = v.shape[1] <= FEW
    rule = fused_recurrent_gated_delta_rule if few else chunk_gated_delta_rule
    return rule(
        q, k, v, g, beta, initial_state=S,
        output_final_state=True, use_qk_l2norm_in_kernel=True,
    )  # fmt: skip


def use_kernels(model, on=True):
    """Give a model's linear layers the kernels; `on=False` takes them back.

    Any module that has a `rule` gets it: chunked for a prefill, recurrent
    for a few tokens. The rule that it had comes back with False.
    """
    for layer in model.modules():
        if not hasattr(layer, "rule"):
            continue
        if on and layer.rule is not kernel_rule:
            layer.rule_before, layer.rule = layer.rule, kernel_rule
        elif not on and layer.rule is kernel_rule:
            layer.rule = layer.rule_before
