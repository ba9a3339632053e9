"""Where the files of models come from: packages, the hub, this machine's folders."""
