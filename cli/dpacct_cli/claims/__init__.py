"""`dpacct claims ...`: what publications promise, against what is proven and achieved."""
