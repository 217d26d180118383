"""Task processes on other machines: on each host an agent, which starts them from a launcher of the host.

    kernel                           driver process                     each host
    RemoteBackend ── Deliver ──────→ Relay ────── agent.perform() ────→ HostAgent ──→ LocalBackend ──→ tasks
                  ←─ FrameArrived ──     │  ←──── agent.poll() ────────     reads their logs and stacks
    views ←── run folder ←── what the tasks wrote

The way of a command. Each step but the last is one for all tasks that get the same command:

    RemoteBackend.send: encoded → Orders, those that leave together → Relay.forward: by host, numbered, each
    large value put into the engine once → HostAgent.perform: each number once → LocalBackend.send_frame

The way of an event. Each step but the first is one for all events of a host that come at about the same time:

    LocalBackend.take_events → HostAgent.poll: after the output before it, one frame → Relay: output written
    → FrameArrived → RemoteBackend.take_events: decoded

Only the modules `ray_*` know Ray. The driver process is one of its own, since Ray ends a process that loses
its cluster, and a notebook must outlive that. The agent reaches tasks as a kernel reaches those of its own
machine, so the task program, launcher and supervisor are the same for both.

May import what `tfmagic.backends` may.
"""
