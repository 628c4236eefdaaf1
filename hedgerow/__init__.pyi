from hedgerow.boosting.errors import FederationError as FederationError
from hedgerow.boosting.tables.delimited import csv_files as csv_files
from hedgerow.coordinator.operator.library.clients import Client as Client
from hedgerow.coordinator.operator.library.clients import connect as connect
from hedgerow.coordinator.operator.library.crossing import cv as cv
from hedgerow.coordinator.operator.library.exploration import Exploration as Exploration
from hedgerow.coordinator.operator.library.exploration import explore as explore
from hedgerow.coordinator.operator.library.frames import Frame as Frame
from hedgerow.coordinator.operator.library.jobs import Job as Job
from hedgerow.coordinator.operator.library.jobs import Plan as Plan
from hedgerow.coordinator.operator.library.jobs import plan as plan
from hedgerow.coordinator.operator.library.models import load as load
from hedgerow.coordinator.operator.library.running import Run as Run
from hedgerow.coordinator.operator.library.running import RunFailed as RunFailed
from hedgerow.coordinator.operator.library.running import local as local
from hedgerow.coordinator.operator.library.scoring import Model as Model
from hedgerow.coordinator.operator.library.searching import Search as Search
from hedgerow.coordinator.operator.library.searching import search as search
from hedgerow.coordinator.operator.library.simulating import simulate as simulate
from hedgerow.coordinator.operator.library.simulating import split as split
from hedgerow.joining import Site as Site
from hedgerow.joining import join as join

__version__: str
