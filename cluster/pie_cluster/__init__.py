"""Many nodes as one server: an extension of pie_py, which never imports it."""
