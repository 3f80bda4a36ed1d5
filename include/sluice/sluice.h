// All of the library.

#pragma once

#include "sluice/analyze.h"
#include "sluice/attention.h"
#include "sluice/attention_device.h"
#include "sluice/chat.h"
#include "sluice/error.h"
#include "sluice/evaluate.h"
#include "sluice/generate.h"
#include "sluice/model.h"
#include "sluice/plan.h"
#include "sluice/report.h"
#include "sluice/sequence.h"
#include "sluice/tune.h"
#include "sluice/version.h"
