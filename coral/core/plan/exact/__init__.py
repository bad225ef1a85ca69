"""Exact solving of programs with many columns and few rows: what a demand row's covers cost, whole.

`covers` finds the demand rows of a program; `pricing` answers for one of them what its cheapest cover costs;
`relaxation` is the linear program by column generation, `decomposition` the stronger bound over whole covers,
`pool` the covers that can still matter, `restricted` the small program made of them, `engine` the course
of it all, `memory` what one solve leaves for the next.
"""
