"""Writes the files that the libraries read, of each configuration of library_runs.json: what `dtplan plan --from` is given.

    python3 library_files.py library_runs.json FOLDER

makes FOLDER/ID/{config.json,args.json,adapter_config.json,ds.json}, and prints a command for each."""

import json, os, sys

for c in json.load(open(sys.argv[1])):
    folder = os.path.join(sys.argv[2], c["id"])
    os.makedirs(folder, exist_ok=True)
    gpus = c["fake"][0] if c.get("fake") else c["ranks"]
    command = ["dtplan", "plan", "--gpu", "h200-sxm", "--gpus", str(gpus)]

    def write(name, value, option="--from"):
        with open(os.path.join(folder, name), "w") as out:
            json.dump(value, out, indent=1)
        command.extend([option, os.path.join(folder, name)])

    if "plain" in c:  # DeepSpeed's engine over plain modules
        p = c["plain"]
        command += ["--model", "gpt2-xl", "--tied-head=false"] if p["arch"] == "gpt2" else []
        for flag, key in (("layers", "L"), ("hidden", "d"), ("heads", "h"), ("kv-heads", "kv"), ("ffn", "ffn")):
            command += ["--" + flag, str(p[key])]
        command += ["--vocab", str(p["vocab"]), "--seq", str(p["seq"]), "--fused-qkv"]
        command += [] if p["arch"] == "gpt2" else ["--fused-gate-up", "--rope-fp32"]
        command += ["--checkpointing", "full"] if c.get("ac") else []
        write("ds.json", c["ds"])
    else:
        args = dict(c["args"], max_length=c["seq"], output_dir="out", max_grad_norm=1.0)
        dtype = {"bf16": "bfloat16", "fp32": "float32"}[c["dtype"]]
        if dtype == "float32" and "fsdp" not in args:
            args["torch_dtype"] = dtype
        write("config.json", dict(c["config"], torch_dtype=dtype, architectures=["X"]), "--model")
        if c.get("base", "none") != "none":
            args["load_in_8bit" if c["base"] == "int8" else "load_in_4bit"] = True
            if c["base"] != "int8":
                args["use_bnb_nested_quant"] = c["base"] == "nf4-double"
                command += ["--prepare-kbit", "--fp32-ends"] if c.get("prepare", 1) else []
        if c.get("ds"):
            write("ds.json", c["ds"])
            args["deepspeed"] = os.path.join(folder, "ds.json")
        write("args.json", args)
        if c.get("lora"):
            write("adapter_config.json", dict(c["lora"], peft_type="LORA", task_type="CAUSAL_LM"))
        command += ["--grouped-experts"] if "num_experts" in c["config"] else []
        command += ["--attention", "math"] if dtype == "float32" and not args["bf16"] else []
    print(" ".join(command), "--json")
