"""How steps, clock and power of one GPU go along from the first step on: CSV to standard output.

python3 reports/h200/power_trace.py >power_trace.csv, beside nothing else on the GPU, some 90 s. Models of two layers are those of
dtplan probe --runtime torch, others are jobs of torch.scenarios. The driver's counters are read by NVML behind each step.
"""
import ctypes
import os
import sys
import time
import types

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scenarios"))
import probe_torch  # noqa: E402: which says what is missing where PyTorch is
import torch  # noqa: E402

SECONDS = 5
# Name, widths, layers, sequence, micro-batch, precision.
JOBS = (
    ("GPT-2 1.5B", probe_torch.GPT_2_XL, 2, 1024, 8, "bf16-mixed"),
    ("GPT-2 1.5B", probe_torch.GPT_2_XL, 48, 1024, 8, "bf16-mixed"),
    ("LLaMA 7B", probe_torch.LLAMA_7B, 2, 2048, 2, "bf16-pure"),
    ("LLaMA 7B", probe_torch.LLAMA_7B, 32, 2048, 2, "bf16-pure"),
    ("LLaMA 1.3B", probe_torch.LLAMA_1B, 2, 2048, 4, "bf16-mixed"),
    ("LLaMA 1.3B", probe_torch.LLAMA_1B, 24, 2048, 4, "bf16-mixed"),
)


class Counters:
    """Of the first GPU that this process sees; 0 where the driver does not tell."""

    def __init__(self):
        self.nvml, self.device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
        self.nvml.nvmlInit_v2()
        at = torch.cuda.get_device_properties(0)
        place = f"{at.pci_domain_id:08x}:{at.pci_bus_id:02x}:{at.pci_device_id:02x}.0"
        self.nvml.nvmlDeviceGetHandleByPciBusId_v2(place.encode(), ctypes.byref(self.device))

    def read(self, function, *which):
        value = ctypes.c_uint(0)
        getattr(self.nvml, function)(self.device, *which, ctypes.byref(value))
        return value.value

    def clock_mhz(self):
        return self.read("nvmlDeviceGetClockInfo", 1)  # NVML_CLOCK_SM

    def power_w(self):
        return self.read("nvmlDeviceGetPowerUsage") / 1000

    def temperature_c(self):
        return self.read("nvmlDeviceGetTemperature", 0)  # NVML_TEMPERATURE_GPU


def main():
    counters, device = Counters(), torch.device("cuda", 0)
    print("job,layers,step,began_s,step_s,clock_mhz,power_w,temperature_c")
    for name, widths, layers, sequence, micro_batch, precision in JOBS:
        probe_torch.LAYERS = layers
        choices = probe_torch.choices_of(sequence, micro_batch, precision, False, "flash")
        run = probe_torch.ProbeRun(types.SimpleNamespace(seed=1, lr=1e-4), probe_torch.shape_of(widths), choices, 1, 0, device)
        began, step = time.perf_counter(), 0
        while time.perf_counter() - began < SECONDS:
            step += 1
            at_s, (step_s, _) = time.perf_counter() - began, run.step(False)
            print(f"{name},{layers},{step},{at_s:.4f},{step_s:.6f},{counters.clock_mhz()},{counters.power_w():.0f},"
                  f"{counters.temperature_c()}")
        del run
        torch.cuda.empty_cache()
        time.sleep(2)  # which a GPU takes to forget what it drew


if __name__ == "__main__":
    main()
