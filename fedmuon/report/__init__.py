"""Reading run directories (`runs`) and comparing them (`results` of one, `compare` of many): tables, pages, figures.

From Python: `from fedmuon.report.write import write_page, write_figures, table`.
"""
