"""Program of the processes that run user code: the launcher and the tasks. Never imports a backend."""
