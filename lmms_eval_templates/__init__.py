"""Instruction templates for evaluating and training multimodal models, after the paper "Template Matters"."""

from .matching import Match, match_answer
from .metrics import sensitivity
from .sets import TemplateError, TemplateSet, load_template_set, template_set
from .space import CHOICE, QUESTION, VQA, JointSpace, MetaTemplate, TemplateSpace, assign_templates

__all__ = [
    "CHOICE",
    "QUESTION",
    "VQA",
    "JointSpace",
    "Match",
    "MetaTemplate",
    "TemplateError",
    "TemplateSet",
    "TemplateSpace",
    "assign_templates",
    "load_template_set",
    "match_answer",
    "sensitivity",
    "template_set",
]
