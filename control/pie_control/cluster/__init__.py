"""What a control process does as a node of a cluster, and the cluster's gateway."""
