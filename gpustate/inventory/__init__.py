"""Read inventories of many formats.

``load`` accepts the value of ``-i``: a file or a directory in Ansible's formats, an executable that prints
Ansible's JSON, pyinfra's ``inventory.py``, or a plain list ``gpu1,gpu2``. Groups, variables, precedence and
limit patterns follow ansible-core. Where Ansible warns and continues (a file it cannot parse, a limit that
matches nothing) this package stops, because a silently omitted node stays unpatched.

``ansible.cfg`` and ``ANSIBLE_*`` environment variables are not read.

Sources:
    Ansible, "How to build your inventory" and "Patterns: targeting hosts and groups".
    pyinfra, "Inventory & Data".
"""

from __future__ import annotations

from gpustate.inventory.loading import load
from gpustate.inventory.patterns import select

__all__ = ["load", "select"]
