"""Host microseconds of an expert's weight around a grouped linear whose products are one call: expert_weights.py cuda

What Python and autograd do for each expert in Transformer Engine's GroupedLinear (pytorch/module/grouped_linear.py)
under Megatron-Core's distributed_data_parallel.py, by hand and without their kernels: weights looked up in the module,
rows split, all of it saved and restored, a stand-in for each weight's gradient, autograd's node that takes it and the
hook behind that. Medians of 150 passes over so many experts of one matrix; loop_us: 8000 additions in Python beside them.
"""
import statistics
import sys
import time

import torch

DEVICE, NARROW = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cpu"), torch.bfloat16
PASSES, WARM = 200, 50
stand_ins, in_bucket, kept = {}, {}, []


def cast(tensor):
    return tensor if tensor is None or tensor.dtype == NARROW else tensor.to(NARROW)


def prepare_for_saving(*tensors):
    plain, objects = [], []
    for tensor in tensors:
        if tensor is None or isinstance(tensor, torch.Tensor):
            plain.append(tensor)
            objects.append(None)
        else:
            objects.append(tensor)
    return plain, objects


def restore_from_saved(objects, saved):
    out = []
    for _ in objects:
        out.append(saved[0])
        saved = saved[1:]
    return out


def stand_in(weight):
    if hasattr(weight, "grad_added_to_main_grad"):
        weight.grad_added_to_main_grad = True
        shape = tuple(weight.main_grad.shape)
        if shape not in stand_ins:
            stand_ins[shape] = torch.empty(shape, dtype=weight.dtype, device=DEVICE)
        return stand_ins[shape].detach()
    return None


class Grouped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, splits, *weights_and_biases):
        n = len(splits)
        weights, biases = weights_and_biases[:n], weights_and_biases[n:]
        parts = [cast(part) for part in torch.split(rows.view(-1, weights[0].shape[-1]), splits)]
        narrow = [cast(weight) for weight in weights]
        out = torch.empty([sum(splits), narrow[0].size(0)], dtype=NARROW, device=DEVICE)
        plain, ctx.objects = prepare_for_saving(*parts, *narrow, *weights, *biases)
        ctx.save_for_backward(*plain)
        ctx.main_grads = [weights[i].main_grad for i in range(n)]
        ctx.n, ctx.splits, ctx.shape = n, splits, rows.shape
        return out

    @staticmethod
    def backward(ctx, gradient):
        saved, n = restore_from_saved(ctx.objects, ctx.saved_tensors), ctx.n
        weights = saved[2 * n:3 * n]
        for weight, main_grad in zip(weights, ctx.main_grads):
            weight.main_grad = main_grad
        [cast(part) for part in torch.split(gradient.contiguous().view(-1, gradient.shape[-1]), ctx.splits)]
        of_rows = torch.empty(ctx.shape, dtype=NARROW, device=DEVICE)
        return of_rows, None, *[stand_in(weight) for weight in weights], *[None] * n


class GroupedLinear(torch.nn.Module):
    def __init__(self, experts):
        super().__init__()
        self.experts = experts
        for i in range(experts):
            weight = torch.nn.Parameter(torch.zeros(8, 8, dtype=NARROW, device=DEVICE))
            weight.main_grad = torch.zeros(8, 8, device=DEVICE)
            weight.grad_added_to_main_grad = False
            self.register_parameter(f"weight{i}", weight)
            setattr(self, f"bias{i}", torch.Tensor().to(NARROW))

    def forward(self, rows, splits):
        weights = [getattr(self, f"weight{i}") for i in range(self.experts)]
        biases = [getattr(self, f"bias{i}") for i in range(self.experts)]
        return Grouped.apply(rows, splits, *weights, *biases)


def hook_of(weight):
    def hook(*_):
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return
        if weight in in_bucket:
            assert weight.requires_grad
            getattr(weight, "_cudagraph_wgrad_ready_event", None)
            if weight.grad is not None and (not weight.grad_added_to_main_grad or
                                            getattr(weight, "zero_out_wgrad", False)):
                weight.main_grad.add_(weight.grad.data)
            weight.grad = None
    return hook


def loop_us():
    begun, total = time.perf_counter(), 0
    for i in range(8000):
        total += i
    return (time.perf_counter() - begun) * 1e6


def main():
    print("experts,forward_us,backward_us,loop_us")
    for experts in (1, 2, 4, 8, 16, 32, 64):
        module = GroupedLinear(experts).to(DEVICE)
        for weight in module.parameters():
            in_bucket[weight] = 1
            node = weight.expand_as(weight).grad_fn.next_functions[0][0]
            node.register_hook(hook_of(weight))
            kept.append(node)
        rows = torch.zeros(4 * experts, 8, dtype=NARROW, device=DEVICE, requires_grad=True)
        splits, forward, backward, loops = [4] * experts, [], [], []
        for _ in range(PASSES):
            begun = time.perf_counter()
            out = module(rows, splits)
            between = time.perf_counter()
            out.backward(out.detach())
            ended = time.perf_counter()
            if DEVICE.type == "cuda":
                torch.cuda.synchronize()
            forward.append((between - begun) * 1e6)
            backward.append((ended - between) * 1e6)
            loops.append(loop_us())
        print(f"{experts},{statistics.median(forward[WARM:]):.1f},{statistics.median(backward[WARM:]):.1f},"
              f"{statistics.median(loops):.0f}")


if __name__ == "__main__":
    main()
