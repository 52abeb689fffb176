"""A Kubernetes cluster over the nodes of a lab: its own control plane, real kubelets, virtual nodes.

Modules: ``certificates`` and ``kubeconfig`` make identities, ``client`` talks to the API server,
``controlplane`` starts the processes on the controller, ``machine`` is what a node gets, ``objects`` what
the cluster starts with, ``containers`` the images that are made on the spot, ``virtual`` the kwok nodes, and
``cluster`` puts them together.
"""
