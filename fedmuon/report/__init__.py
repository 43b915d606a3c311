"""Reading run directories (`runs`) and comparing them (`results` of one, `compare` of many): tables, pages, figures."""
