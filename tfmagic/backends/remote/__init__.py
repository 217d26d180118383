"""Task processes on other machines: on each host an agent, which starts them from a launcher of the host.

    kernel                           driver process                     each host
    RemoteBackend ── Deliver ──────→ driver ────── agent.perform() ───→ HostAgent ──→ LocalBackend ──→ tasks
                  ←─ FrameArrived ──     │     ←── agent.poll() ───────     reads their logs and stacks
    views ←── run folder ←── what the tasks wrote

Only the modules `ray_*` know Ray. The driver process is one of its own, since Ray ends a process that loses
its cluster, and a notebook must outlive that. The agent reaches tasks as a kernel reaches those of its own
machine, so the task program, launcher and supervisor are the same for both.

May import what `tfmagic.backends` may.
"""
