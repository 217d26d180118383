"""Hosts that exist only on this machine: a network namespace each, joined by a bridge.

    kernel                          holder process                         launcher
    SimulatedHosts ── SetLink ────→ the bridge, and one link to each host
                   ←─ HostMade ──   (user, network and host name namespaces)
    LocalBackend ── ForkTask(where=HostPlace) ───────────────────────────→ forks a task, which enters them

A task's process is the child of the launcher, as on no host: only its network, its host name and its
/etc/hosts differ. Nothing outside can reach a host, and a host reaches only the others: the bridge has no
other link. The kernel of Linux removes it all when the last process of it has ended, and the holder ends with
ours. No root is needed where user namespaces are allowed.

May import what `tfmagic.backends` may.
"""
