// sluice._core.generate, generate_batch and chat.

#include <map>

#include "bind.h"

namespace sluice::python {
namespace {

constexpr std::pair<const char*, AuditMode> kAuditModes[] = {{"replay", AuditMode::kReplay},
                                                             {"step", AuditMode::kStep}};
constexpr std::pair<const char*, End> kEnds[] = {{"length", End::kLength},
                                                 {"end-token", End::kEndToken},
                                                 {"stop-string", End::kStopString},
                                                 {"context-full", End::kContextFull},
                                                 {"callback", End::kCallback}};
constexpr std::pair<const char*, Role> kRoles[] = {
    {"system", Role::kSystem}, {"user", Role::kUser}, {"assistant", Role::kAssistant}};

nb::dict dict_of(const MeasuredKl& kl) {
  nb::dict out;
  out["n_samples"] = kl.n_samples;
  out["mean"] = kl.mean;
  out["low"] = kl.low;
  out["high"] = kl.high;
  return out;
}

nb::dict dict_of(const GenerateResult& result) {
  nb::dict out;
  out["text"] = result.text;
  out["tokens"] = result.tokens;
  out["end"] = word_of(kEnds, result.end);
  out["n_prompt"] = result.n_prompt;
  out["prefill_seconds"] = result.prefill_seconds;
  out["decode_seconds"] = result.decode_seconds;
  out["followed_plan"] = result.followed_plan;
  out["why_dense"] = text_or_none(result.why_dense);
  out["audit"] = nb::none();
  if (!result.audit) return out;
  nb::dict audit;
  audit["kl"] = dict_of(result.audit->kl);
  audit["prompt_kl"] = dict_of(result.audit->prompt_kl);
  audit["n_steps"] = result.audit->n_steps;
  audit["n_compared"] = result.audit->n_compared;
  audit["delta_factor"] = result.audit->delta_factor;
  out["audit"] = audit;
  return out;
}

// on_token(id, text) may return False to end the text; None goes on.
GenerateOptions generate_options(const nb::dict& given, const nb::object& on_token) {
  Options options(given);
  GenerateOptions out;
  options.take("max_tokens", out.max_tokens);
  options.take("temperature", out.temperature);
  options.take("top_k", out.top_k);
  options.take("top_p", out.top_p);
  options.take("min_p", out.min_p);
  options.take("repetition_penalty", out.repetition_penalty);
  options.take("seed", out.seed);
  options.take("stop", out.stop);
  options.take("ignore_end", out.ignore_end);
  options.take("plan", out.plan);
  options.take("always", out.always);
  options.take("audit_every", out.audit_every);
  options.take_word<AuditMode>("audit_mode", kAuditModes, out.audit_mode);
  options.finish();
  out.on_token = [on_token](const GeneratedToken& token) {
    const nb::gil_scoped_acquire held;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (on_token.is_none()) return true;
    const nb::object answer = on_token(token.id, nb::str(token.text.data(), token.text.size()));
    return answer.is_none() || nb::cast<bool>(answer);
  };
  return out;
}

nb::dict generate_one(Model& model, const std::string& prompt, const nb::object& on_token,
                      const nb::dict& given) {
  const GenerateOptions options = generate_options(given, on_token);
  GenerateResult result;
  {
    const nb::gil_scoped_release released;
    result = generate(model, prompt, options);
  }
  return dict_of(result);
}

// A list of results; a prompt that was refused has {"error", "hint"}.
nb::list generate_several(Model& model, const std::vector<std::string>& prompts, int64_t max_live,
                          const nb::dict& given) {
  GenerateOptions options = generate_options(given, nb::none());
  options.on_token = {};
  std::vector<BatchResult> results;
  {
    const nb::gil_scoped_release released;
    results = generate_batch(model, prompts, options,
                             {.max_live = max_live, .on_token = [](size_t, const GeneratedToken&) {
                                check_signals();
                                return true;
                              }});
  }
  nb::list out;
  for (const BatchResult& each : results) {
    if (!each.error) {
      out.append(dict_of(each.result));
      continue;
    }
    nb::dict refused;
    refused["error"] = each.error->what();
    refused["hint"] = each.error->hint();
    out.append(refused);
  }
  return out;
}

std::vector<Message> messages_of(const nb::list& given) {
  std::vector<Message> messages;
  for (const nb::handle each : given) {
    Options fields(nb::cast<nb::dict>(each));
    Message message;
    fields.take_word<Role>("role", kRoles, message.role);
    fields.take("content", message.text);
    fields.finish();
    messages.push_back(std::move(message));
  }
  return messages;
}

nb::dict answer(Model& model, const nb::list& messages, const std::string& format,
                const nb::dict& given) {
  const GenerateOptions options = generate_options(given, nb::none());
  const std::vector<Message> said = messages_of(messages);
  GenerateResult result;
  {
    const nb::gil_scoped_release released;
    result = chat(model, said, options, format);
  }
  return dict_of(result);
}

}  // namespace

void bind_generate(nb::module_& core) {
  core.def("generate", &generate_one, nb::arg("model"), nb::arg("prompt"),
           nb::arg("on_token").none(), nb::arg("options"));
  core.def("generate_batch", &generate_several, nb::arg("model"), nb::arg("prompts"),
           nb::arg("max_live"), nb::arg("options"));
  core.def("chat", &answer, nb::arg("model"), nb::arg("messages"), nb::arg("format"),
           nb::arg("options"));
}

}  // namespace sluice::python
