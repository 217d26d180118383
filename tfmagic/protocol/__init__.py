"""What the processes of a cluster say to each other: plain frozen data, and the channel that carries it.

    cluster_spec       which tasks there are: types, indices, TF_CONFIG
    commands           what the supervisor tells a task
    events             what a task tells the supervisor
    launcher_messages  what the launcher is asked, and answers
    payload            pickled bytes on their way, in line or as a file descriptor
    channel            a socket that carries these, and refuses anything else
    task_context       what a task knows of itself: `tfmagic.current_task`, `tfmagic.barrier`
    module_origins     where a module of the caller comes from, for a process that imports it too

Imports `tfmagic.errors`, and nothing else of tfmagic's.
"""
