"""A PyTorch reference script with the dtype of gradient reduction that is asked for.

python3 -m torch.distributed.run ... torch_beside.py fp32|bf16 REFERENCE.py ARGUMENTS...

FSDP2 reduces in what MixedPrecisionPolicy is given. A reference that names fp32 there reduces in bf16 under `bf16`, and is
otherwise run as it stands; so one script serves both columns of a table.
"""
import runpy
import sys

import torch
import torch.distributed.fsdp as fsdp

reduce, reference = sys.argv[1:3]
if reduce not in ("fp32", "bf16"):
    sys.exit(f"torch_beside.py: '{reduce}' is neither fp32 nor bf16")
if reduce == "bf16":
    policy = fsdp.MixedPrecisionPolicy

    def in_bf16(param_dtype=None, reduce_dtype=None, **others):
        return policy(param_dtype, torch.bfloat16 if reduce_dtype is not None else None, **others)

    fsdp.MixedPrecisionPolicy = in_bf16
sys.argv = sys.argv[2:]
runpy.run_path(reference, run_name="__main__")
