"""A Kubernetes cluster of lab nodes: its own control plane, real kubelets, virtual nodes.

Modules: ``certificates`` and ``kubeconfig`` create identities, ``client`` sends requests to the API server,
``controlplane`` starts the processes on the controller, ``machine`` sets up a node, ``objects`` has the initial
objects, ``containers`` builds container images, ``virtual`` creates kwok nodes, ``cluster`` combines them.
"""
