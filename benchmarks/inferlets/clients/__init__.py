"""The logic of programs of the library, each as a client-side script. `main` has their options."""
