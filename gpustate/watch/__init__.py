"""Follow the Nodes of clusters, and apply a policy to those that join, reboot, or get another label.

``nodes`` reads Nodes, ``work_queue`` decides which are due, ``watcher`` watches and applies, ``units`` and
``deployment`` are how it runs as a service.
"""
