"""The one error a person sees: a sentence that says what is wrong and what to do."""


class ClusterError(Exception):
    pass
