"""Kubernetes through its API: the only room that knows lightkube.

``api`` makes requests and returns plain data, ``pods`` judges that data, ``podproof`` runs one pod that uses a
GPU. Nothing here reaches a node over SSH.
"""
