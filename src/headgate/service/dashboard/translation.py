"""English and Chinese: the texts of the pages. English is written where it is shown; this file has the Chinese.

Messages of headgate itself (problems of a rulebook, errors) are English in both, as on the command line.
"""

# ruff: noqa: RUF001 (Chinese has punctuation of its own)
from __future__ import annotations

import re
from typing import Final

ENGLISH: Final = "en"
CHINESE: Final = "zh"
LANGUAGES: Final = (ENGLISH, CHINESE)

IN_CHINESE: Final = {
    "Enforce it in stages": "分阶段执行",
    "Each stage for": "每阶段时长",
    "Roll back above": "超过则回滚",
    "Start with 1 %": "从 1 % 开始",
    "Stop, and roll back": "停止并回滚",
    "of its enforced calls refused": "的已执行调用被拒绝",
    "It is enforced for 1, 10, 50 and 100 % of its keys. A stage that refuses too much is rolled back.": (
        "依次对 1、10、50、100 % 的键执行。某一阶段拒绝过多时会自动回滚。"
    ),
    "No service runs that could watch over the stages: start headgate serve.": (
        "没有运行中的服务可以监视各阶段：请启动 headgate serve。"
    ),
    "{state}: {why}": "{state}：{why}",
    "{event}: {details}": "{event}：{details}",
    "for {span}": "持续 {span}",
    "rolled back": "已回滚",
    "done": "已完成",
    "stopped": "已停止",
    "(version {n} again)": "（重新发布版本 {n}）",
    ", a sample of {share} of all calls: it refuses less than all would": (
        "，是全部调用的 {share} 抽样：实际拒绝会更多"
    ),
    "1 day": "1 天",
    "1 hour": "1 小时",
    "1 minute": "1 分钟",
    "A key of this rule": "此规则的键",
    "A limit of its own": "单独的限额",
    "A note, for the history": "说明，写入历史",
    "After": "之后",
    "All rules, the last minute": "全部规则，最近一分钟",
    "Audit": "审计",
    "Before": "之前",
    "Block": "封禁",
    "Calls": "调用",
    "Calls per second": "每秒调用",
    "Calls what": "调用内容",
    "Candidate": "候选",
    "Changes of this key": "此键的变更",
    "Decides the recent calls by the rules in force and by these, and shows what differs. Nothing is published.": (
        "用现行规则和编辑后的规则分别判定最近的调用，并显示差异。不会发布任何内容。"
    ),
    "Delayed": "延迟",
    "Exempt": "豁免",
    "Filter rules": "筛选规则",
    "Find": "查找",
    "Find a person, a rule or a key": "查找人员、规则或键",
    "From {source}: change it there. Here you can check and preview a change.": (
        "来自 {source}：请在那里修改。这里可以检查和预览。"
    ),
    "History": "历史",
    "Hot and most refused keys of the last minute": "最近一分钟最热和被拒最多的键",
    "How long": "多久",
    "Is it safe to enforce? The last {hours} hours": "可以强制执行吗？最近 {hours} 小时",
    "Its next call": "下一次调用",
    "Its own limit": "单独限额",
    "Its text": "全文",
    "Key": "键",
    "Keys": "键",
    "Keys with a limit of their own": "有单独限额的键",
    "Kind": "类型",
    "Last minute": "最近一分钟",
    "Light or dark": "浅色或深色",
    "Log in": "登录",
    "Log out": "退出",
    "Look at it": "查看",
    "Name": "名称",
    "No key called in the last minute.": "最近一分钟没有调用。",
    "No key has a limit of its own.": "没有键有单独限额。",
    "No version is kept here.": "这里不保存版本。",
    "Nobody has changed it lately.": "最近没有变更。",
    "Nothing was changed yet.": "还没有任何变更。",
    "Now": "现在",
    "Offered": "请求",
    "Override": "设定限额",
    "Or a log, up to 8 MB": "或上传日志，最多 8 MB",
    "Overview": "概览",
    "Pages": "页面",
    "Passed": "通过",
    "Passes again in": "再次通过需等",
    "Preview": "预览",
    "Problems": "问题",
    "Publish": "发布",
    "Publish version {n}": "发布版本 {n}",
    "Redis answers in": "Redis 响应",
    "Refused": "拒绝",
    "Refused by rule": "各规则拒绝",
    "Refused now and then since": "时有拒绝，始于",
    "Refused since": "被拒始于",
    "or earlier": "或更早",
    "{calls} calls, {refused} refused": "{calls} 次调用，{refused} 次被拒",
    "{n} calls were seen, and {needed} are needed": "只有 {n} 次调用，至少需要 {needed} 次",
    "it refuses {share} of {keys} keys; at most {most} may be refused": (
        "会拒绝 {keys} 个键中的 {share}；最多可拒绝 {most}"
    ),
    "Refused: live beside shadow and candidate": "拒绝：现行与影子、候选对比",
    "Redis does not answer. This page shows what this process knows, and nothing can be changed now.": (
        "Redis 没有响应。本页显示此进程已知的内容，现在无法更改任何内容。"
    ),
    "Remaining": "剩余",
    "Remove its own limit": "取消单独限额",
    "Replay recent calls": "重放最近调用",
    "Reset counters": "清零计数",
    "Roll back to it": "回滚到此",
    "Rule": "规则",
    "Rulebook": "规则集",
    "Rules": "规则",
    "Say why, for those who read the audit trail.": "请写明原因，供审计查看。",
    "Services, gateways and programs": "服务、网关和程序",
    "Shadow": "影子",
    "Show": "查看",
    "Show all {n} rules": "显示全部 {n} 条规则",
    "Skip to the content": "跳到正文",
    "Span": "时段",
    "State": "状态",
    "The rulebook ({format})": "规则集（{format}）",
    "The service prints its admin token when it starts, unless one was set.": (
        "服务启动时会打印管理令牌，除非已自行设定。"
    ),
    "The whole book": "整个规则集",
    "There are no recent calls to replay.": "没有可重放的最近调用。",
    "This change is not kept any more.": "此变更已不再保存。",
    "This did not work": "操作未成功",
    "This rule is not in the rulebook any more.": "此规则已不在规则集中。",
    "This rule takes no overrides: write “overrides: true” in it to exempt or block keys.": (
        "此规则不接受单独限额：写入 “overrides: true” 后才能豁免或封禁键。"
    ),
    "This token is not valid.": "令牌无效。",
    "Token": "令牌",
    "Tools": "工具",
    "Trial": "试行",
    "Trials would refuse": "试行会拒绝",
    "Undo": "撤销",
    "Version": "版本",
    "Version {n}": "版本 {n}",
    "Version {n}, by {author}": "版本 {n}，{author} 发布",
    "Watch what limits do, and change them.": "观察限流，并随时调整。",
    "What": "内容",
    "What it changed": "改动内容",
    "What it changes": "将会改动",
    "What you can do": "可以做什么",
    "When": "时间",
    "Who, from where": "谁，从哪里",
    "Why": "原因",
    "Why?": "原因？",
    "Why? This is for those who read the audit trail": "原因？供审计查看",
    "Write a note: why do you change the rules?": "请写说明：为什么修改规则？",
    "You may look, and not change anything.": "您只能查看，不能修改。",
    "Your name, for the audit trail": "您的名字，写入审计",
    "Nothing was published. Your text is kept below: publish it again when Redis answers.": (
        "没有发布任何内容。您的文本保留在下方：Redis 恢复后请再次发布。"
    ),
    "Whether it was published is unknown: Redis got it, and gave no reply. Your text is kept below. "
    "Open Rules again, in another tab, when Redis answers: it says there what became of it.": (
        "是否已发布未知：请求已发给 Redis，但没有响应。您的文本保留在下方。"
        "Redis 恢复后，请在另一标签页打开“规则”，那里会显示结果。"
    ),
    "Your publication that got no reply was made: it is version {n}.": "之前没有响应的发布已成功：版本 {n}。",
    "Your publication that got no reply has not been made. Version {n} is in force.": (
        "之前没有响应的发布尚未成功。现行版本是 {n}。"
    ),
    "Your text is kept below. This is what changed since version {base}; take over what you want, and publish "
    "again: it will then follow version {newer}.": (
        "您的文本保留在下方。这是版本 {base} 之后的改动；采纳需要的部分后再次发布，将接在版本 {newer} 之后。"
    ),
    "added": "新增",
    "all other rules": "其他规则",
    "and {n} more lines": "还有 {n} 行",
    "by": "来自",
    "candidate": "候选",
    "changed": "修改",
    "checking": "检查中",
    "edited": "编辑后",
    "enforced for {share} %": "对 {share} % 执行",
    "for a day": "一天",
    "for an hour": "一小时",
    "in force": "生效中",
    "is refused": "被拒绝",
    "key charged again": "重新计数",
    "key reset": "清零计数",
    "live": "实时",
    "longer than {span}": "超过 {span}",
    "newly passed": "新通过",
    "newly refused": "新拒绝",
    "nginx": "nginx",
    "no": "否",
    "no connection": "连接中断",
    "no rule applies": "无规则适用",
    "none": "无",
    "not enough data": "数据不足",
    "nothing": "无",
    "off": "关闭",
    "operator": "操作员",
    "override set": "设定限额",
    "override unset": "取消限额",
    "passed": "通过",
    "passes": "通过",
    "problems": "个问题",
    "program": "程序",
    "refused": "拒绝",
    "refused of": "被拒，共",
    "removed": "删除",
    "renamed": "改名",
    "replaying": "重放中",
    "rules published": "发布规则",
    "rules rolled back": "回滚规则",
    "safe to enforce: {answer}": "可强制执行：{answer}",
    "service": "服务",
    "shadow": "影子",
    "silent for {span}": "静默 {span}",
    "units refunded": "退还额度",
    "undone": "已撤销",
    "unsaved": "未发布",
    "until it is undone": "直到撤销",
    "valid": "有效",
    "viewer": "查看者",
    "works": "正常",
    "yes": "是",
    "{n} keys": "{n} 个键",
    "{n} older changes": "更早的 {n} 条变更",
    "{n} rules": "{n} 条规则",
    "It saw {n} calls of {span}": "重放了 {span} 内的 {n} 次调用",
    # Find a number, and the playground.
    "Find a number": "求限额",
    "Upload an access log: it says how much ordinary clients need, and whom each limit would refuse.": (
        "上传访问日志：得出普通客户端需要多少，以及每种限额会拒绝谁。"
    ),
    "An access log, up to 100 MB": "访问日志，最多 100 MB",
    "A log may have at most 100 MB.": "日志最多 100 MB。",
    "Whose calls count together": "按什么计数",
    "As a text, gzip or zstd; its format is detected. It is read by this service alone, and deleted as soon as it "
    "was read.": "文本、gzip 或 zstd；格式自动识别。只由本服务读取，读完立即删除。",
    "More options": "更多选项",
    "Only these calls": "仅限这些调用",
    "Keys that may be refused": "允许被拒的键",
    "Format of the lines": "行格式",
    "Fields of other names": "其他名称的字段",
    "Time zone of times without one": "无时区时间的时区",
    "Upload and analyse": "上传并分析",
    "Cancel": "取消",
    "Uploading": "上传中",
    "cancelled": "已取消",
    "Reading the log": "读取日志",
    "Choosing a limit": "选择限额",
    "Counting who would be refused": "统计谁会被拒绝",
    "Only operators upload logs.": "只有操作员可以上传日志。",
    "{limit} in shadow, from {log}": "{limit} 影子模式，来自 {log}",
    "log uploaded": "上传日志",
    "Suggested": "建议",
    "for all calls together": "全部调用合计",
    "for each {key}": "每个 {key}",
    "{calls} calls of {keys} keys in {span}. At {rate} a burst of {needed} refuses none of the ordinary keys; the "
    "rest is headroom.": (
        "{span} 内 {keys} 个键的 {calls} 次调用。速率 {rate} 时，突发 {needed} 不拒绝任何普通键；其余为余量。"
    ),
    "{n} calls have no key, and were left out": "{n} 次调用没有键，未计入",
    "In the last third of the log, which was not used to choose, it refuses {refused} of {keys} ordinary keys.": (
        "在未用于选择的后三分之一日志中，拒绝 {keys} 个普通键中的 {refused} 个。"
    ),
    "The first two thirds of the log chose {limit}, but in the last third that refuses {refused} of {keys} "
    "ordinary keys. So the whole log chose again: run it in shadow mode first.": (
        "前三分之二日志选出 {limit}，但在后三分之一中它拒绝 {keys} 个普通键中的 {refused} 个。"
        "因此改由全部日志重新选择：请先以影子模式运行。"
    ),
    "These are too few to confirm it: run it in shadow mode first.": "键太少，无法确认：请先以影子模式运行。",
    "Look at these keys before you enforce it.": "强制执行前请查看这些键。",
    "So it holds.": "结论成立。",
    "Choose": "选择",
    "Back to the suggestion": "回到建议",
    "Drag the handle, or move it by the arrow keys: left and right follow the line, up and down change the burst. "
    "Below a line, some of these keys are refused.": (
        "拖动手柄，或用方向键移动：左右沿线移动，上下改变突发。线以下会拒绝其中一些键。"
    ),
    "Rate": "速率",
    "Burst": "突发",
    "burst": "突发",
    "50 % of the keys": "50 % 的键",
    "99 %": "99 %",
    "all ordinary keys": "全部普通键",
    "heavy": "重度",
    "Who would be refused": "谁会被拒绝",
    "The heavy keys, and the busiest ordinary ones. Counted on the whole log, as if enforced.": (
        "重度键和最繁忙的普通键。按整个日志统计，视同强制执行。"
    ),
    "Refuses {keys} of {allKeys} ordinary keys ({keyShare}), {calls} of their {allCalls} calls ({callShare}).": (
        "拒绝 {allKeys} 个普通键中的 {keys} 个（{keyShare}），其 {allCalls} 次调用中的 {calls} 次（{callShare}）。"
    ),
    "Refuses none of {allKeys} ordinary keys.": "不拒绝 {allKeys} 个普通键中的任何一个。",
    "Of the heavy keys it refuses {keys} of {allKeys}, and {callShare} of their calls.": (
        "拒绝 {allKeys} 个重度键中的 {keys} 个，及其 {callShare} 的调用。"
    ),
    "Share": "占比",
    "Save as a shadow rule": "保存为影子规则",
    "It opens in the editor of the rulebook, where you see what it changes before you publish it. In shadow mode "
    "it reports, and refuses nobody.": "在规则集编辑器中打开，发布前可看到改动。影子模式只报告，不拒绝。",
    "Open in the editor": "在编辑器中打开",
    "Heavy keys, set apart": "单独列出的重度键",
    "They need far more than all others. Exempt those that you know; the limit refuses most of the rest.": (
        "它们的需求远超其他键。请豁免认识的；其余大多会被限额拒绝。"
    ),
    "Looks like": "像是",
    "crawler": "爬虫",
    "scanner": "扫描器",
    "proxy with many people": "多人共用的代理",
    "customer": "客户",
    "unknown": "未知",
    "Most a minute": "每分钟最多",
    "Paths": "路径",
    "Errors": "错误",
    "Jitter": "间隔波动",
    "and {n} more": "还有 {n} 个",
    "Playground": "试验场",
    "Any limits side by side, under the traffic that they will meet. Time is virtual.": (
        "在将会遇到的流量下并排比较任意限额。时间是虚拟的。"
    ),
    "Traffic": "流量",
    "For how long": "时长",
    "Clients": "客户端数",
    "Time of a call": "每次调用时长",
    "Refused clients": "被拒的客户端",
    "Limits": "限额",
    "Limit": "限额",
    "Limit {n}": "限额 {n}",
    "Each client is counted by itself": "每个客户端单独计数",
    "Play": "运行",
    "At most {n} calls, and a day.": "最多 {n} 次调用、一天。",
    "steady: one call after the other": "平稳：逐个调用",
    "Poisson: independent clients": "泊松：相互独立的客户端",
    "square burst: quiet and busy by turns": "方波：闲忙交替",
    "ramp: from nothing to twice the rate": "斜坡：从零升到两倍速率",
    "flash sale: twenty times as many at once, which fade away": "秒杀：瞬间二十倍，随后消退",
    "diurnal: a day and a night": "昼夜：一天一夜",
    "retry storm: all who are refused try again": "重试风暴：被拒者都重试",
    "thundering herd: all at once, every ten seconds": "惊群：每十秒同时到达",
    "as the shape has it": "按流量类型",
    "they give up": "放弃",
    "they honour Retry-After": "遵守 Retry-After",
    "they try again at once": "立即重试",
    "Side by side": "并排比较",
    "Gave up": "放弃",
    "Most passed in a second": "每秒最多通过",
    "Median wait": "等待中位数",
    "p99 wait": "等待 p99",
    "The wait is the time from a client's first try until its call passes.": (
        "等待：从客户端首次尝试到调用通过的时间。"
    ),
}


def translate(language: str, text: str) -> str:
    """Returns a text in a language; in English if there is no other.

    >>> translate("zh", "Rules"), translate("zh", "as it is")
    ('规则', 'as it is')
    """
    return IN_CHINESE.get(text, text) if language == CHINESE else text


def choose_language(wanted: str | None, accepted: str | None) -> str:
    """Returns the language that the user has chosen, or that the browser asks for first.

    >>> choose_language(None, "zh-CN,zh;q=0.9,en;q=0.8"), choose_language("en", "zh"), choose_language(None, None)
    ('zh', 'en', 'en')
    """
    if wanted in LANGUAGES:
        return wanted
    weights: list[tuple[float, str]] = []
    for part in (accepted or "")[:500].split(","):
        tag, _, weight = part.strip().partition(";")
        language = tag.partition("-")[0].lower()
        if language in LANGUAGES:
            match = re.fullmatch(r"\s*q=([01](?:\.\d{1,3})?)\s*", weight)
            weights.append((float(match[1]) if match else 1.0, language))
    return max(weights, key=lambda each: each[0])[1] if weights else ENGLISH
