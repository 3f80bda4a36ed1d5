#include "eval/analyze/paper_tables.h"

#include <array>

namespace sluice::impl {
namespace {

constexpr std::array kGpt2Coherence = {
    PaperModel::Coherence{0, 384, 354, 0.912, 352}, PaperModel::Coherence{2, 348, 290, 0.762, 276},
    PaperModel::Coherence{4, 215, 233, 0.882, 210}, PaperModel::Coherence{9, 252, 240, 0.937, 238},
    PaperModel::Coherence{10, 240, 220, 0.909, 219}};
constexpr std::array kGptjCoherence = {PaperModel::Coherence{0, 69, 80, 0.863, 69},
                                       PaperModel::Coherence{3, 107, 112, 0.955, 107},
                                       PaperModel::Coherence{5, 125, 172, 0.727, 125},
                                       PaperModel::Coherence{10, 241, 253, 0.945, 240},
                                       PaperModel::Coherence{15, 255, 259, 0.985, 255},
                                       PaperModel::Coherence{20, 234, 232, 0.991, 232},
                                       PaperModel::Coherence{25, 225, 221, 0.982, 221}};
constexpr std::array kOptCoherence = {
    PaperModel::Coherence{0, 512, 1, 0.002, 1},     PaperModel::Coherence{1, 1, 1, 1.000, 1},
    PaperModel::Coherence{5, 1, 2, 0.500, 1},       PaperModel::Coherence{10, 37, 49, 0.755, 37},
    PaperModel::Coherence{15, 82, 98, 0.837, 82},   PaperModel::Coherence{20, 239, 257, 0.930, 239},
    PaperModel::Coherence{25, 259, 254, 0.981, 254}};

constexpr std::array kGpt2Counts = {PaperModel::Count{0, 384}, PaperModel::Count{4, 215},
                                    PaperModel::Count{11, 220}};
constexpr std::array kGptjCounts = {PaperModel::Count{0, 69}, PaperModel::Count{5, 125},
                                    PaperModel::Count{15, 255}, PaperModel::Count{27, 207}};
constexpr std::array kOptCounts = {PaperModel::Count{0, 512}, PaperModel::Count{1, 1},
                                   PaperModel::Count{10, 37}, PaperModel::Count{20, 239},
                                   PaperModel::Count{31, 231}};

constexpr std::array kGptjTurnovers = {PaperModel::Turnover{1, 200, 80, 131, 0, 1.899},
                                       PaperModel::Turnover{4, 147, 112, 38, 55, 0.567},
                                       PaperModel::Turnover{10, 264, 241, 5, 3, 0.031},
                                       PaperModel::Turnover{15, 278, 255, 2, 5, 0.025},
                                       PaperModel::Turnover{20, 263, 234, 10, 17, 0.100},
                                       PaperModel::Turnover{25, 243, 225, 5, 10, 0.060},
                                       PaperModel::Turnover{27, 237, 207, 20, 23, 0.179}};

using Change = PaperModel::Layer::Change;
constexpr std::array kGptjLayers = {PaperModel::Layer{0, 69, 69, {}},
                                    PaperModel::Layer{1, 80, 200, Change{0.863, 131, 0, 1.90}},
                                    PaperModel::Layer{2, 89, 123, Change{0.899, 34, 111, 0.73}},
                                    PaperModel::Layer{3, 107, 164, Change{0.832, 69, 28, 0.79}},
                                    PaperModel::Layer{4, 112, 147, Change{0.955, 38, 55, 0.57}},
                                    PaperModel::Layer{5, 125, 243, Change{0.881, 125, 29, 1.05}},
                                    PaperModel::Layer{10, 241, 264, Change{0.945, 5, 3, 0.03}},
                                    PaperModel::Layer{15, 255, 278, Change{0.985, 2, 5, 0.03}},
                                    PaperModel::Layer{20, 234, 263, Change{0.991, 10, 17, 0.10}},
                                    PaperModel::Layer{25, 225, 243, Change{0.982, 5, 10, 0.06}},
                                    PaperModel::Layer{27, 207, 237, Change{0.937, 20, 23, 0.18}}};

constexpr std::array kGptjScaling = {
    PaperModel::Scaling{512, 240, 0.52, 2.1}, PaperModel::Scaling{1024, 280, 0.72, 3.7},
    PaperModel::Scaling{2048, 320, 0.84, 6.4}, PaperModel::Scaling{4096, 380, 0.91, 10.8},
    PaperModel::Scaling{8192, 450, 0.95, 18.2}};

constexpr std::array kModels = {
    PaperModel{.name = "GPT-2 124M",
               .family = "gpt2",
               .n_layers = 12,
               .d_model = 768,
               .coherence = kGpt2Coherence,
               .counts = kGpt2Counts,
               .turnovers = {},
               .layers = {},
               .gram = {3.15e6, 2.47e6, 0.22, 0.863},
               .deep = {6, 243, 320, 1.32, 0.13, 0.30},
               .scaling = {},
               .mean_n_reps = 278},
    PaperModel{.name = "GPT-J 6B",
               .family = "gptj",
               .n_layers = 28,
               .d_model = 4096,
               .coherence = kGptjCoherence,
               .counts = kGptjCounts,
               .turnovers = kGptjTurnovers,
               .layers = kGptjLayers,
               .gram = {7.34e6, 3.51e6, 0.52, 0.940},
               .deep = {10, 237, 262, 1.11, 0.03, 0.18},
               .scaling = kGptjScaling,
               .mean_n_reps = 205},
    PaperModel{.name = "OPT 6.7B",
               .family = "opt",
               .n_layers = 32,
               .d_model = 4096,
               .coherence = kOptCoherence,
               .counts = kOptCounts,
               .turnovers = {},
               .layers = {},
               .gram = {8.39e6, 3.08e6, 0.63, 0.825},
               .deep = {15, 237, 279, 1.18, 0.02, 0.07},
               .scaling = {},
               .mean_n_reps = 142},
};

}  // namespace

std::span<const PaperModel> paper_models() { return kModels; }

const PaperModel* paper_model_of(const ModelSpec& spec) {
  for (const PaperModel& model : kModels)
    if (spec.family == model.family && spec.n_layers == model.n_layers &&
        spec.d_model == model.d_model)
      return &model;
  return nullptr;
}

}  // namespace sluice::impl
