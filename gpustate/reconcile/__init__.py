"""Bring the objects of a cluster to those of a policy: read, plan, apply, prune, verify.

``planning`` compares and decides, ``applying`` writes and verifies, ``readiness`` judges DaemonSets, ``document`` is
the result as plain data.
"""
