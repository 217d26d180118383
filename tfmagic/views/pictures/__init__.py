"""Pictures of a cluster, as SVG and as text: the map, and the timeline.

    ClusterState ──→ cluster_map.ClusterMap ──→ map_svg ───────┐
                                                               ├──→ scene: SVG, and what a notebook keeps
    records on disk ──→ lanes.Timeline ───────→ timeline_svg ──┘
                                       └──────→ timeline_text

The charts of `tfmagic.views.figures` are scenes, too. All functions here are pure. May import `runs` and
`supervisor` (its state), as the other views.
"""
