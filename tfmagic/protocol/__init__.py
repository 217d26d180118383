"""The messages between the processes of a cluster, as plain frozen data, and the channel that carries them.

    cluster_spec       which tasks there are: types, indices, TF_CONFIG
    commands           from the supervisor to a task
    events             from a task, the operating system or the user to the supervisor
    launcher_messages  between a kernel and its launcher
    payload            base classes of messages; pickled bytes, in line or as a file descriptor
    channel            a socket that carries messages, and refuses anything else
    task_context       what a task knows of itself: `tfmagic.current_task`, `tfmagic.barrier`
    module_origins     where a module of the caller comes from, for a process that imports it too

Imports `tfmagic.errors`, and nothing else of tfmagic's.
"""
