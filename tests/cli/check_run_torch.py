"""Whether run_torch.py deals with every key of a plan: check_run_torch.py FOLDER_OF_IT PLAN.json takes|refuses [WORD]"""
import json
import sys

sys.path.insert(0, sys.argv[1])
import run_torch  # noqa: E402

with open(sys.argv[2], encoding="utf-8") as file:
    whole = json.load(file)
try:
    choices = run_torch.Choices(run_torch.Part("plan", whole["plan"]))
    run_torch.Shape(run_torch.Part("model", whole["model"]), choices.sequence)
except run_torch.Refused as refused:
    words = str(refused)
    if sys.argv[3] != "refuses" or not words.startswith(sys.argv[4] + ":"):
        sys.exit(f"refused: {words}")
else:
    if sys.argv[3] != "takes":
        sys.exit("taken")
    # A key of tomorrow is refused by name.
    whole["plan"]["a_new_key"] = False
    try:
        run_torch.Choices(run_torch.Part("plan", whole["plan"]))
        sys.exit("a key that nobody knows was let be")
    except run_torch.Refused as refused:
        if "a_new_key" not in str(refused):
            sys.exit(str(refused))
