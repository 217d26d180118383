"""The course: lessons on clusters as notebooks, and the checks of their exercises.

    tfmagic course DIR            copies the notebooks into a folder, or makes assignments of them for a class
    tfmagic.course.check("3.2")   says what an answer lacks, without giving it away; raises=True raises it
    tfmagic.course.hint("3.2")    gives the next hint
    tfmagic.course.results()      says which exercises are right; export(path) writes it as JSON
    tfmagic.course.reset()        stops the clusters and deletes the variables, to begin a lesson again

An exercise leaves its answer in variables of the notebook; a check reads nothing else. The notebooks are in
`notebooks/course` of a checkout, and beside this module in an installation. A user reaches this package as
`tfmagic.course`. Nothing here imports code of clusters before it needs it.
"""
