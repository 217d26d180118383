"""Pictures of a cluster, as SVG and as text: the map, and the timeline.

    ClusterState ──→ cluster_map.ClusterMap ──→ map_svg, text
    records on disk ──→ lanes.Timeline ───────→ timeline_svg, timeline_text

All functions here are pure. May import `runs` and `supervisor` (its state), as the other views.
"""
