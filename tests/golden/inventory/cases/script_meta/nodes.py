#!/usr/bin/env python3
import json
print(json.dumps({
    "gpu": {"hosts": ["n1", "n2"], "vars": {"v": "gpu"}, "children": ["h100"]},
    "h100": {"hosts": ["n2"], "vars": {"v": "h100"}},
    "plain": ["n3"],
    "later": {"children": ["never_named"]},
    "_meta": {"hostvars": {"n1": {"a": 1}, "n3": {"b": [True, None]}, "nowhere": {"x": 1}}},
}))
