"""Kubernetes through its API: the only package that imports lightkube.

``api`` sends requests and returns plain data, ``objects`` does so for objects of any kind, ``pods`` interprets it, ``podtest`` runs one pod that uses a
GPU, ``kubeconfig`` finds the file. Nothing here connects to a node over SSH.
"""
