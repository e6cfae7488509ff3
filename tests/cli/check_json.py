#!/usr/bin/env python3
"""Holds what --json prints against its schema: check_json.py SCHEMA_FOLDER SCHEMA FILE.json ... [-- SCHEMA FILE.json ...] ...

Users may meet fields that a schema of theirs does not know yet; here every field must be in it, so that none is printed
that is not documented. Exit status 77 where there is no jsonschema."""
import json
import pathlib
import sys

try:
    import jsonschema
except ImportError:
    sys.exit(77)

folder = pathlib.Path(sys.argv[1])


def closed(node):
    """The schema with other files put in and no room for unknown fields."""
    if isinstance(node, list):
        return [closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return closed(json.loads((folder / node["$ref"]).read_text()))
    node = {key: closed(value) for key, value in node.items() if key != "$id"}
    if isinstance(node.get("properties"), dict) and "type" in node and "additionalProperties" not in node:
        node["additionalProperties"] = False
    return node


def held(name, paths):
    """How many errors the files have."""
    schema = closed(json.loads((folder / f"{name}.json").read_text()))
    validator = jsonschema.validators.validator_for(schema)
    validator.check_schema(schema)
    failures = 0
    for path in paths:
        for error in validator(schema).iter_errors(json.loads(pathlib.Path(path).read_text())):
            failures += 1
            print(f"{name}: {'/'.join(map(str, error.absolute_path))}: {error.message[:300]}")
    return failures


groups = [[]]
for word in sys.argv[2:]:
    if word == "--":
        groups.append([])
    else:
        groups[-1].append(word)
sys.exit(sum(held(group[0], group[1:]) for group in groups) > 0)
