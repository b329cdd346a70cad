"""The `__init__` of packages in the client's bundle (see `seer.rpc._bundles`)."""
