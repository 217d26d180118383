"""Pictures of a cluster, as SVG and as text: the map, and the timeline.

ClusterState ──→ cluster_map ──→ map_svg ────────────────────────┐
                                                                 ├──→ views.scene: SVG
supervisor ──→ recorder ──→ timeline_file ──→ lanes ─→ timeline_svg
                                                └────→ timeline_text
"""
