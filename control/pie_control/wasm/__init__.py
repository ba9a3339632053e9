"""The Wasm runtime: components as fibers on one thread, through Wasmtime's C API."""
