"""Products of vectors and matrices, attention, distances."""

import dittograd as dg
import torch

from .table import alike, is_dynamic, lowering, truth

F = dg.nn.functional

alike("matmul mm bmm mv dot vdot inner outer ger addmm addmv addbmm baddbmm addr kron linear bilinear cosine_similarity")
alike("pairwise_distance pdist cdist trace det logdet inverse matrix_power matrix_exp")
alike("tensordot", lambda a, b, left, right: dg.tensordot(a, b, [left, right]))
alike("_cdist_forward", lambda a, b, p, mode=None: dg.cdist(a, b, p))
alike("linalg_inv", dg.linalg.inv)
alike("linalg_det", dg.linalg.det)
alike("linalg_solve", dg.linalg.solve)
alike("linalg_cholesky", dg.linalg.cholesky)
alike("linalg_cross", lambda a, b, dim=-1: dg.linalg.cross(a, b, dim=dim))
alike("linalg_matmul", dg.matmul)


@lowering("einsum.default")
def _einsum(c, equation, tensors, *, path=None):
    return dg.einsum(equation, *tensors)


def _causal(mask, rows, columns):
    """Whether a constant mask lets each query attend to the keys up to its own place."""
    if mask.dtype != torch.bool or rows != columns or tuple(mask.shape[-2:]) != (rows, columns):
        return False
    return bool((mask == torch.ones(rows, columns, dtype=torch.bool).tril()).all())


@lowering("scaled_dot_product_attention.default", constants="known")
def _attention(c, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
    query, key, value = [x if is_dynamic(x) else c.tensor(x) for x in (query, key, value)]
    if isinstance(attn_mask, torch.Tensor):
        if attn_mask.dtype == torch.bool and attn_mask.all():
            attn_mask = None
        elif _causal(attn_mask, query.shape[-2], key.shape[-2]):
            attn_mask, is_causal = None, True
        else:
            attn_mask = c.tensor(attn_mask)
    elif attn_mask is not None and c.types[3].dtype == torch.bool:
        attn_mask = truth(attn_mask)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask, float(dropout_p), is_causal, scale=scale, enable_gqa=enable_gqa
    )
