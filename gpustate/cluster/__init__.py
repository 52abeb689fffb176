"""Kubernetes through its API: the only package that imports lightkube.

``api`` sends requests and returns plain data, ``pods`` interprets it, ``podtest`` runs one pod that uses a
GPU, ``kubeconfig`` finds the file. Nothing here connects to a node over SSH.
"""
