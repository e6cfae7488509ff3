"""Which of the lines asked of eight GPUs hold, by what eight_gpus.sh measured.

eight_gpus_lines.py PLAN.json VALIDATE.csv VALIDATE_PROBED.csv BESIDE.csv: exit status 1 where one does not hold or was not measured.

PLAN.json is `dtplan plan --json` of LLaMA 7B full_shard, 8 x 2048, on 8 GPUs: its share of the peak times its seconds are the
operations of a step. Rows whose bytes or memory are not those of GPUs (`on_gpu` 0) count for bytes alone.
"""
import csv
import json
import statistics
import sys

GPUS = 8


def rows_of(path):
    try:
        with open(path, newline="") as file:
            return list(csv.DictReader(file))
    except OSError:
        return []


def number(row, column):
    return float(row.get(column) or "nan")


def off(row, part):
    """How far the measured part is from the predicted one, as a fraction of it."""
    return abs(number(row, f"measured_{part}") / number(row, f"predicted_{part}") - 1)


def fastest(rows, gpus, **wanted):
    """Tokens a second and GPU of the fastest row of that many GPUs, and its seconds a step; None without one."""
    found = [row for row in rows if row["gpus_count"] == str(gpus) and all(row[key] == value for key, value in wanted.items())]
    row = min(found, key=lambda row: number(row, "measured_step_s"), default=None)
    return row and (number(row, "measured_tokens_per_s_per_gpu"), number(row, "measured_step_s"))


def judge_validation(say, catalogue, probed):
    ran = [row for row in catalogue if row["status"] == "0" and row["gpus_count"] == str(GPUS)]
    parts = [column.removeprefix("measured_") for column in (catalogue[0] if catalogue else {})
             if column.startswith("measured_") and column.endswith("_bytes") and "device_bytes" not in column]
    wrong = [row["name"] for row in ran if any(number(row, f"measured_{part}") != number(row, f"predicted_{part}") for part in parts
                                              if row[f"predicted_{part}"] and row[f"measured_{part}"])]
    say("bytes of arena, collectives and copies as predicted", f"{len(ran) - len(wrong)} of {len(ran)} jobs", ran and not wrong)
    memory = [off(row, "device_bytes") for row in ran if row["on_gpu"] == "1"]
    say("device memory within 0.5 %", f"at most {100 * max(memory):.2f} %" if memory else "no GPU's measured", memory and max(memory) <= 0.005)
    for words, rows, limit in ("the catalogue", catalogue, 0.10), ("the probe", probed, 0.05):
        steps = [off(row, "step_s") for row in rows if row["status"] == "0" and row["compared"] == "1" and row["gpus_count"] == str(GPUS)]
        within = sum(value <= limit for value in steps)
        say(f"steps within {100 * limit:.0f} % by {words}",
            f"{within} of {len(steps)}, median {100 * statistics.median(steps):.1f} %" if steps else "none compared",
            steps and within == len(steps))


def main():
    plan_path, catalogue_path, probed_path, beside_path = sys.argv[1:]
    with open(plan_path) as file:
        plan = json.load(file)
    catalogue, probed, beside = rows_of(catalogue_path), rows_of(probed_path), rows_of(beside_path)
    held = []

    def say(line, figure, holds):
        held.append(bool(holds))
        print(f"{'holds ' if holds else 'MISSED'}  {line}: {figure}")

    judge_validation(say, catalogue, probed)
    ok = [row for row in beside if row["status"] == "ok" and row["reduce_dtype"] == "fp32" and row["gpus"] == str(GPUS)]
    speed = {who: [number(row, "tokens_per_s_per_gpu") for row in ok if row["program"] == who] for who in ("dtplan", "PyTorch")}
    if all(speed.values()):
        ratio = statistics.median(speed["dtplan"]) / statistics.median(speed["PyTorch"])
        say("7B full_shard 8 x 2048 at 1.10 times PyTorch, both reducing in fp32", f"{ratio:.3f} times", ratio >= 1.10)
    else:
        say("7B full_shard 8 x 2048 at 1.10 times PyTorch, both reducing in fp32", "not measured", False)
    seven = {"model": "llama-7b", "micro_batch_sequences": "8"}
    best = fastest(catalogue, GPUS, strategy="full_shard", **seven)
    share = plan["throughput"]["mfu"] * plan["time"]["step_s"] / best[1] if best else 0
    say("7B full_shard 8 x 2048 at 60 % of the peak", f"{100 * share:.1f} %" if best else "not measured", share >= 0.60)
    one, eight = fastest(catalogue, 1, strategy="ddp", **seven), fastest(catalogue, GPUS, strategy="ddp", **seven)
    scaling = eight[0] / one[0] if one and eight else 0
    say("7B ddp 8 x 2048 on eight GPUs at 94 % of one's tokens/s a GPU", f"{100 * scaling:.1f} %" if scaling else "not measured",
        scaling >= 0.94)
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
