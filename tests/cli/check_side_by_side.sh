#!/usr/bin/env bash
# reports/h200/side_by_side.sh with small jobs on the host and a launcher in PyTorch's place: check_side_by_side.sh DTPLAN SOURCE_TREE
set -uo pipefail
# shellcheck source=tests/cli/says.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/says.sh"

command -v python3 >/dev/null || { echo "no python3: nothing can run PyTorch here" && exit 77; }
enter "$@"

# What torch.distributed.run would be: it is called as that is, and writes what the reference would, or its error.
cat >launcher.py <<'END'
import json, os, sys

beside, reduce, reference = sys.argv[1:4]
assert os.path.basename(beside) == "torch_beside.py" and os.path.basename(reference) == "reference.py", sys.argv
arguments = dict(zip(sys.argv[4::2], sys.argv[5::2]))
(config,) = json.load(open(arguments["--configs"]))
assert config["world"] == 2 and config["steps"] == 8 and os.environ["FAKE_NODES"] == "1", config
row = dict(config, step_s=0.5, tok_s_gpu=32, dev_used=1000)
if config["L"] == 0:
    row = dict(config, error="Traceback\nValueError: no layers, in " + reduce)
if config["L"] == 9:
    sys.exit(7)
open(arguments["--out"], "a").write(json.dumps(row) + "\n")
END
touch reference.py
shape='--hidden 32 --heads 2 --ffn 64 --seq 16 --strategy full_shard --threads 1'
cat >try.jobs <<END
# name | GPUs | nodes | reduction | environment | PyTorch | dtplan

works | 2+ | 1 | bf16 | NCCL_ANY=1 | "L":1 | --layers 1 --vocab 301 $shape
refused | 2+ | 1 | fp32 | | "L":0 | --layers 1 --vocab 301 $shape --heads 3
ends early | 2 | 1 | fp32 | | "L":9 | --layers 1 --vocab 301 $shape --steps 2000000000
of one GPU | 1 | 1 | fp32 | | "L":1 | --layers 1
END
export GPUS=2 DEVICE=host TORCH_RUN="python3 launcher.py"
timeout 200 "$source/reports/h200/side_by_side.sh" "$(dirname -- "$program")" reference.py out try.jobs >said 2>&1 || failed "$(cat said)"
rows=out/rows.csv
[[ $(wc -l <"$rows") == 13 ]] || failed "two rounds of three jobs made $(wc -l <"$rows") lines: $(cat "$rows" said)"
grep -qF 'of one GPU' "$rows" && failed "a job of one GPU was run on two"
for round in 1 2; do
    grep -qE "^$round,dtplan,works,2,1,bf16,NCCL_ANY=1,[0-9.e-]+,[0-9.e-]+,[0-9.]+,[0-9]*,[0-9]+,[0-9]+,ok$" "$rows" || failed "round $round: dtplan: $(cat "$rows")"
    grep -qE "^$round,PyTorch,works,2,1,bf16,NCCL_ANY=1,0.5,,32,1000,,[0-9]+,ok$" "$rows" || failed "round $round: PyTorch: $(cat "$rows")"
    grep -qE "^$round,dtplan,refused,.*,exit status 2$" "$rows" || failed "what dtplan refuses is no row: $(cat "$rows")"
    grep -qE "^$round,PyTorch,refused,.*\"?ValueError: no layers, in fp32\"?$" "$rows" || failed "an error is no row: $(cat "$rows")"
    grep -qE "^$round,PyTorch,ends early,.*,exit status 7$" "$rows" || failed "an exit status is no row: $(cat "$rows")"
done
BUDGET_S=1 timeout 60 "$source/reports/h200/side_by_side.sh" "$(dirname -- "$program")" reference.py late try.jobs >said 2>&1
[[ $(grep -c 'no time was left$' late/rows.csv) == 12 ]] || failed "without time: $(cat late/rows.csv)"
"$source/reports/h200/side_by_side.sh" nowhere reference.py out >said 2>&1
[[ $? == 2 ]] || failed "a folder without dtplan is taken"

# The jobs that are shipped: dtplan takes every line's keys, and PyTorch's configuration is JSON of the same shape.
while IFS='|' read -r name least _ _ _ torch keys; do
    [[ -n $name && $name != '#'* ]] || continue
    gpus=$([[ $least == *2+* ]] && echo 2 || echo 1)
    read -ra words <<<"$keys"
    "$program" plan --runtime dtplan --fidelity closed --gpu h200 --gpus "$gpus" --atomic-attention --no-gradient-norm --json "${words[@]}" >plan.json 2>err ||
        failed "$name: $(cat err)"
    python3 - "$torch" plan.json <<'END' || failed "$name: the two programs would not run the same model"
import json, sys
ours, theirs = json.load(open(sys.argv[2])), json.loads("{" + sys.argv[1] + "}")
model = ours["model"]
wanted = {"layers": theirs["L"], "hidden": theirs["d"], "heads": theirs["h"], "ffn": theirs["ffn"], "vocab": theirs["vocab"]}
different = {key: (model.get(key), value) for key, value in wanted.items() if model.get(key) != value}
if different:
    sys.exit(f"{different}")
END
done <"$source/reports/h200/side_by_side.jobs"

((failures == 0)) || { echo "$failures failed" && exit 1; }
