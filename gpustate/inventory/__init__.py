"""Reads the many inventory formats into nodes.

``load`` takes what stands after ``-i``: a file or a directory as Ansible has them, an executable
that prints Ansible's JSON, pyinfra's ``inventory.py``, or a plain list ``gpu1,gpu2``. An inventory
that Ansible reads means the same here: groups, variables, precedence and limit patterns follow
ansible-core. Where Ansible warns and goes on (a file it cannot parse, a limit that matches nothing)
this package stops, because a node left out in silence is a node left unpatched.

``ansible.cfg`` and ``ANSIBLE_*`` environment variables are not read.

Sources:
    Ansible, "How to build your inventory" and "Patterns: targeting hosts and groups".
    pyinfra, "Inventory & Data".
"""

from __future__ import annotations

from gpustate.inventory.loading import load
from gpustate.inventory.patterns import select

__all__ = ["load", "select"]
