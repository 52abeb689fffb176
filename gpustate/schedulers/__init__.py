"""Take nodes out of service the way their scheduler's own tools do: Kubernetes and Slurm.

``base`` is the interface, ``kubernetes`` and ``slurm`` implement it; ``eviction`` selects the pods that leave a Node and
``foreign`` names who else holds it, both pure. Only this room talks to schedulers.
"""
